"""What the workloads share. Nothing here knows either of them.

Time:

    scheduler    events on one thread, in an order that the seed decides; an event that waits runs others inside
    stacks       the same with a stack for each event, so that events can wait for locks, disks and each other
    locks        the product's locks, conditions, events and clock, in simulated time

What brokers and clients meet:

    network      messages that are delayed, lost, repeated and reordered; calls and their replies
    zookeeper    sessions that expire, watches that come late, writes whose outcome nobody knows
    lagging      ZooKeeper's servers that lag behind the others
    world        all of these together, and the context in which the product runs in them

Runs:

    workload     what a workload consists of; one seed of it
    weather      the part of a plan that says how bad network and ZooKeeper are
    faults       when faults strike
    variants     the product broken on purpose, by name
    situations   what many seeds must reach
    trace        what happened, line by line, and a digest of it
    outcome      what became of a run, and the errors that end one
    pool         many seeds on several processes
"""
