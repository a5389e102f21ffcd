"""How fast and small pylog is, each figure beside the best the machine can do: ``make bench``, ``python -m bench``.

Absolute speeds say more about the machine and its neighbours than about the code, so every comparison runs pylog and
a peer (a ceiling: the same work without a log behind it) in turns, in one run, and states the ratio. One module per
comparison; its docstring says what is compared with what, and what is promised.

    harness       turns, figures, the table and the JSON
    workspace     what comparisons share and what ends with them: directory, Spark session, cluster, peer processes
    data          the rows
    bare_spark    a Spark source and sink with nothing behind them
    bare_flight   a Flight server with nothing but a file behind it, in its own process

It only uses what users may use (`pyspark_log`), except `frame_size`, which measures the frame itself, and `catch_up`,
whose peer asks for frames as they are.
"""
