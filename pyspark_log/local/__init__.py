"""A cluster's server processes on this machine: what `pylog up` and `pyspark_log.testing` stand on.

    broker_process   a broker as a child process, with its directory and settings
    ensemble         the bundled ZooKeeper (`broker_runtime.zookeeper.bundled`), one server or several
    starting         several servers started at the same time
    foreground       running until Ctrl-C or SIGTERM

Ports are chosen by `broker_runtime.ports`. No server outlives the process that started it, however
that ends (`GuardedProcess`). Never imported by the client or by Spark's side.
"""
