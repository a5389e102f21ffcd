"""``format("pylog")``: the Python data source that reads and writes topics in Spark.

    option_definitions  which options exist, and what each means: the reference is generated from it
    option_table        sorts what a user gave by them, for reading and for writing
    options             the sorted options, checked and parsed: `SourceOptions`, `SinkOptions`
    offsets             source offsets: the checkpoint's JSON, where to start and to end
    planning            from offsets to input partitions: rate limit, splitting, coalescing, data loss (pure)
    row_schema          the Spark schema of a source's rows, and where each column comes from
    log_view            what topics, partitions and offsets there are now, asked from the brokers with retries
    task_secrets        what tasks prove themselves with: a token in place of the driver's password
    worker_cluster      the connections that one of Spark's Python processes keeps
    worker_memory       what these processes imported stays out of Spark's garbage collections
    range_reading       an input partition's ranges as Arrow batches (on the executors)
    stream_reader       spark.readStream: Spark's questions, translated; how often an idle query asks the brokers
    plain_errors        what Spark shows of our errors is one line
    load                topics as a DataFrame in one line, with a predicate as a Column
    query_offsets       where a streaming query is, how far its next micro-batch goes, what is lost
    progress            a query's progress as its group's committed offsets
    query_member        a query as the one member of its group
    query_metrics       a listener that publishes lag and rates as metrics
    offsets_behind      how far a query is behind, from the progress that Spark reports (pure)
    sink_columns        which column of a DataFrame becomes which part of a record (pure)
    sink                df.write and df.writeStream
    source              `DefaultSource`, which Spark looks up; spark.read

Rule: nothing here reaches a broker except through `pyspark_log.client`; on the data path rows stay Arrow. Readers and
writers are pickled, so they hold settings only; connections are made where they are used, in the worker.
"""
