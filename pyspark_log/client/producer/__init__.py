"""The producer: from `Producer.send` to the acknowledgement.

producer                          `Producer`
partitioner, lanes                which partition a record goes to
row_check, column_values          whether a record fits its topic
gathering, batches                records and columns on their way to becoming frames
delivery                          the futures of what was sent
partition_queue, accumulator      all that is not acknowledged yet
sequence                          the numbers of an idempotent producer's frames
dispatch, sender, produce_stream  the threads and streams that send it
"""
