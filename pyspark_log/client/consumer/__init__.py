"""The consumer: what it reads, what it is given, what it commits.

consumer                       `Consumer`, and its parts
subscription, assignment       what is to be read; which partitions are read now
group_share                    how that follows what the group's coordinator says
membership, heartbeats         a member of a group (pure), and the thread that speaks for it
start_positions                where a partition begins
partition_state, fetcher       what is read ahead, and the threads that read
handout                        what the caller is given, decoded
committer                      what it is done with, and its group knows
"""
