"""How fast and small pylog is, each figure beside the best the machine can do: ``make bench``, ``python -m bench``.

Absolute speeds say more about the machine and its neighbours than about the code, so every comparison runs pylog and
a peer (a ceiling: the same work without a log behind it) in turns, in one run, and states the ratio. One module per
comparison; its docstring says what is compared with what, and what is promised.

    harness       turns, figures, the table and the JSON
    workspace     what comparisons share and what ends with them: directory, Spark session, cluster, peer processes
    data          the rows
    bare_spark    a Spark source and sink with nothing behind them
    bare_flight   a Flight server with nothing but a file behind it, in its own process

Two packages are commands of their own and promise nothing: `growth` says how costs grow with the work, and `timeline`
what each thread does while one record, one micro-batch and one task go through.

It only uses what users may use (`pyspark_log`), except `frame_size`, which measures the frame itself, `catch_up`, whose
peer asks for frames as they are, and `timeline`, which wraps functions of all packages from outside.
"""
