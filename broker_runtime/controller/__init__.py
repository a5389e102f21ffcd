"""Decisions about topics, replicas and leaders, and what carries them out.

assignment        which brokers hold which partition (pure)
election          who leads a partition, and who is in sync (pure)
preferred         when leaderships go back to the first replica
reassignment      how a partition moves to other brokers (pure)
topic_plans       what a request to make or change a topic comes to, or why it is refused (pure)

controller        the claim to be the controller, and every write that only it may do
decisions         what the controller decides each time it looks at the cluster
topics, movement  its writes: topics; moves and brokers that are being emptied

cluster_member    the loop that keeps a broker in its cluster: session, registration, claim, what it hosts
news              what that loop is to look at
suspicion         which brokers are probably dead, because their port refuses
hosting           carries out on this broker what was decided: which logs it has, which it leads, whom it follows
disk_room         whether a data directory has room for more
isr_updater       writes the in-sync sets of the partitions this broker leads
"""
