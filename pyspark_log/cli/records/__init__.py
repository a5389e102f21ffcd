"""`pylog produce` and `pylog consume`: records between a topic and files, pipes or a terminal.

Rule: `produce` reads what `consume` writes as JSON lines, with the same ``-f``, or with ``--raw``.

    produce           `pylog produce`
    produce_inputs    what it reads: JSON lines, CSV, Parquet, Arrow, raw bytes
    text_input        lines of text, decoded and bounded
    skip              how many records are in the log already, when it continues after a failure
    consume           `pylog consume`
    ranges            where it begins and ends
    record_format     how a record is written
    json_values       a value of each type as JSON, both ways
    raw_records       records as bytes, with their lengths
"""
