"""The consumer: what it reads, what it is delivered, what it commits.

consumer                       `Consumer`: what users call; it owns one of each of the others
assignment, group_assignment   which partitions are read now: all, or a group member's share
membership, heartbeats         a member of a group (pure), and the thread that sends its heartbeats
partition_state, fetcher       what is fetched ahead, and the threads that fetch
delivery                       what the caller is given, decoded; positions
committer                      what the caller is done with, and how its group gets to know
background                     the thread that commits and refreshes metadata

A poll: `Consumer.poll`, then `Delivery.poll_records`, which takes from the `Fetcher` and changes the `Assignment`.
"""
