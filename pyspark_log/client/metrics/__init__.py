"""What clients count, in a registry of ``prometheus_client``: ``Producer(metrics=…)``, ``Consumer(metrics=…)``.

Rule: nothing imports this package but a client that was given a registry.

    table    which metrics there are
    counts   what happened and how things are, by `pyspark_log.client.meters`
"""
