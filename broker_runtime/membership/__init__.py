"""A broker's life in its cluster: registered, hosting what was decided, giving up what it cannot hold.

cluster_member    the loop that keeps a broker in its cluster: session, registration, claim, what it hosts
news              what that loop is to look at
hosting           carries out on this broker what was decided: which logs it has, which it leads, whom it follows
isr_updater       writes the in-sync sets of the partitions this broker leads
damaged_replicas  gives up what a damaged log can no longer serve
own_disks         whether this broker's disks are those it was in sync with
disk_room         whether a data directory has room for more, and what is reported of it
disk_work         work on a disk that may stand still, on a thread of that disk
"""
