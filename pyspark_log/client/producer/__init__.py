"""The producer: from `Producer.send` to the acknowledgement.

Rule: `Producer.send` only adds a record to a batch; the producer's threads do the rest.

    producer                                  `Producer`
    partitioner, topic_queues                 which partition a record goes to
    row_check, column_values                  whether a record fits its topic
    partition_queue, accumulator              the batches that are not acknowledged yet
    batch_builder, record_batches             the frame of a batch of records, and frames of columns
    sequence                                  the sequence numbers of an idempotent producer
    sender, broker_sender, produce_stream     the threads and streams that send the batches
    delivery                                  the futures of what was sent
    transactions, attempts                    a producer's transactions; those that are decided elsewhere
"""
