"""What a broker does. A caller and a typed request in, a response out.

    produce, fetch, read, plain   records: frames in, frames out, and rows for any Flight client
    follower_session, fetch_look  a follower's or consumer's fetch: what is there to be given
    topics, configs, metadata     what there is, and how it is set
    movement                      moves of partitions, elections, brokers that are being emptied
    offsets, groups               where logs begin and end; consumer groups and their commits
    producer_ids                  ids of idempotent producers
    caller                        who is calling; whether a caller is the broker that it says it is
    peer_beliefs                  what other brokers say of the cluster, while ZooKeeper is away
    byte_budget                   a bound on the bytes that are worked on at a time

Rule: every method begins with its `Caller` (`caller`). Knows nothing of Flight nor of streams, so that another listener
can stand beside it.
"""
