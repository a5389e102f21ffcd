"""What a broker does. A caller and a typed request in, a response out.

    produce, fetch, read, plain       records: frames in, frames out, and rows for any Flight client
    follower_session, partition_read  a follower's fetch session; what one partition has for a fetch
    fetch_wait                        the wait of a fetch for which there is not enough yet
    topics, configs, metadata         which topics and brokers there are, and their settings
    movement                          moves of partitions, elections, brokers that are being emptied
    offsets, groups, lag              where logs begin and end; groups, their commits and their lag
    producer_ids, transactions        ids of idempotent producers; transactions
    authorization                     what the caller must be allowed for each action
    security                          users, access control lists, tokens
    caller                            who is calling; whether a caller is the broker that it says it is
    leadership_check                  asks ZooKeeper who leads, before records are said not to be there
    peer_beliefs                      waits until the other brokers know of a change of a topic
    byte_budget                       a bound on the bytes of requests or answers in memory

Rule: every method begins with its `Caller` (`caller`). Knows nothing of Flight nor of streams, so that another listener
can stand beside it.
"""
