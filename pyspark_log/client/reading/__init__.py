"""Bounded ranges of a log as Arrow rows, without a consumer: `read`, and Spark's source.

Rule: a range is fixed before it is read, and is read completely or ends with an error.

read            `read`
range_reader    a range of offsets of one partition, read ahead on a thread
frame_stream    the Flight stream it comes from
rows            frames as Arrow rows
record_times    the timestamp of the record at an offset
"""
