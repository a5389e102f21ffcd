"""The client: how programs without Spark, and Spark's source and sink, talk to brokers.

Rule: imports nothing but `broker_runtime.contract`, pyarrow, numpy and the standard library, and this module imports
nothing at all. From the bottom up:

    retry, forking            how long to try; what must end before a fork
    channel                   one connection to one broker for actions
    produce_stream, fetch_session, frame_stream        the three kinds of stream
    topics, coordinator, cluster, offsets              metadata, who leads what, calls that are routed and retried;
                              offsets
    partitioner, row_check, column_values, lanes       which partition a record goes to, whether it fits
    gathering, batches        records and columns on their way to becoming frames
    delivery                  what became of them
    partition_queue, accumulator, sender, dispatch     all that is not acknowledged yet, and the threads that send it
    producer                  `Producer`
    rows, range_reader, read  frames as Arrow rows; a bounded range
    partition_state, fetcher  what is read ahead for a consumer
    start_positions, commit_queue, commits             where it begins; what it is done with, and its group knows
    membership, heartbeats    a consumer in its group (pure), and the thread that speaks for it
    assignment, group_share   what it reads now; how that follows what the group tells
    subscription, decoding, records, handout           what it reads; what it hands out
    keeper, consumption       its own thread; all of that together
    descriptions, health, movement, groups, record_times, repeated       what administrators ask, and ask again
    consumer, admin           `Consumer`, `Admin`
    later                     settings that are refused by name because their time has not come

Never here: pyspark, ZooKeeper, files of a log.
"""
