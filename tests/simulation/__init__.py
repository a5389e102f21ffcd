"""The product under seeded simulation: one simulator, and two workloads that run in it.

    simulator/    what the workloads share: time, network, ZooKeeper, traces, many seeds; knows neither workload
    partitions/   brokers with disks, controllers and followers; producers and consumers of partitions
    groups/       group coordinators and the members of consumer groups
    workloads     the workloads by name

`python -m tests.simulation` runs one of them (see `__main__`).
"""
