"""What is going on in a broker, over HTTP (``http.listener``).

counts         what happened since the start: requests, bytes, fsyncs (pushed, by `broker_runtime.meters.Meters`)
state          how things are now: partitions, disks, roles, streams (looked at when somebody asks)
http_listener  ``/metrics``, ``/healthz``, ``/readyz``
"""
