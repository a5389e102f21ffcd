"""Where the time of one record, one micro-batch and one task goes: ``python -m bench.timeline [scenario…]``.

Functions of the product are wrapped from outside while a run is recorded; the product has no line for it. Each call is
a span: which hook, which process and thread, begin and end on CLOCK_MONOTONIC, which all processes of a machine share.

    hooks       which functions are wrapped, and what their spans are called
    recorder    wraps them as their modules are imported; writes spans into a file that all can read
    site/       a directory on PYTHONPATH: Python starts the recorder in brokers and Spark's workers by itself
    recording   reads the files: the spans of a window of time
    scenarios   what is run, many times, and the window of each repetition
    spark_log   Spark's own account: when its tasks ran, what its micro-batches consisted of
    figure      the median repetition as a drawing, a row per thread

Rule: a span is written without a system call and without a lock, because either would change the order of threads that
is being looked at. A wrapped call costs about 1 µs more.
"""
