"""How costs grow with the work: ``python -m bench.growth [axes…] [--quick] [--full]``.

Each axis (partitions, consumers, …) is walked from 1 upwards, and at each point some costs are measured. A cost has the
shape that it should have: *flat* (it does not depend on the axis) or *linear* (each of the n costs as much as before).
From the smaller points that shape predicts the next; a cost of more than twice that is a *bend*, where growth costs
more than it should.

    table           costs, shapes, bends; the table and the JSON
    partitions      of one topic: its creation, metadata, broker start, Spark's source and sink
    consumers       that wait at one broker: its memory and processor, how soon all have a record
    many_consumers  the process with some of these consumers
    frames          rows per frame, value sizes, columns: producing and consuming
    log_size        of one partition: broker start, lookups, the last records

Rule: a duration is the fastest of several repetitions, because another program on the machine makes any of them slower
and none faster. Beside it stands the processor time of everything that took part, which other programs hardly change.
"""
