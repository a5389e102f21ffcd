"""The workload of partitions: a cluster that replicates records while machines, disks and networks fail.

A run, and what can happen in it:

    run                the stages of a run, and the workload itself (`PARTITIONS`)
    plan               what a seed does
    world              the brokers, their network and ZooKeeper, and who observes them
    broker/            one broker with its disk, and the real code of the product that runs in it
    clients, history   producers and consumers; what they sent, and what was answered
    faults             what goes wrong at random, by kind
    directed           faults that aim at one situation
    lost_disks         disks lost or replaced, and power failures without fsyncs
    operations         what operators do: moves, elections, deletions
    variants           brokers broken on purpose
    situations         what the seeds are to reach
    scenario           runs a scenario in plain sentences (`scenarios/`)

The checker:

    invariants         what must hold after every step
    committed          what is committed in one partition
    states             the states of partitions, as ZooKeeper has them
    log_view           what is on a disk, read without the product's log
    derived            what a broker derives from its logs, in memory and in files
    observer           passes what happens on to the trace and the checker
"""
