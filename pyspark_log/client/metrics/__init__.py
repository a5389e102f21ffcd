"""Clients' metrics, in a registry of ``prometheus_client``: ``Producer(metrics=…)``, ``Consumer(metrics=…)``.

Rule: only a client that was given a registry imports this package.

    table    the definitions of all metrics
    counts   implements `pyspark_log.client.meters`: counters, histograms and gauges
"""
