"""The demo: `make demo`. Real flights through three brokers and two Spark jobs; a job and a broker are killed.

__main__    the story, step by step
flights     the data, and the figures computed straight from it
job         a Spark job as a process: started, watched, killed
report      the two sets of figures side by side
"""
