"""The server processes of a cluster on this machine, for `pylog up` and `pyspark_log.testing`.

    broker_process   a broker as a child process, with its directory and settings
    ensemble         the bundled ZooKeeper (`broker_runtime.zookeeper.bundled`), one server or several
    starting         starts several servers at the same time
    foreground       runs a command until Ctrl-C or SIGTERM

`broker_runtime.ports` chooses the ports. No server outlives the process that started it, however that process ends
(`GuardedProcess`). Never imported by the client or by the Spark source and sink.
"""
