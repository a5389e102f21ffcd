"""Bounded ranges of a log as Arrow rows, without a consumer: `read`, and Spark's source.

read           `read`
range_reader   a range of offsets of one partition, read ahead on a thread
frame_stream   the Flight stream it comes from
rows           frames as Arrow rows
record_times   the offset at a point in time
"""
