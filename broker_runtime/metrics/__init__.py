"""What is going on in a broker, over HTTP (``http.listener``).

table          which metrics there are
counts         what happened since the start: requests, bytes, fsyncs (pushed, by `broker_runtime.meters.Meters`)
state          how things are now: partitions, disks, roles, streams (looked at when somebody asks)
group_lag      how far groups are behind (looked at now and then)
log_sizes      how large topics are (likewise)
http_listener  ``/metrics``, ``/healthz``, ``/readyz``
"""
