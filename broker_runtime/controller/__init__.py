"""Decisions about topics, replicas and leaders, and the writes that carry them out.

    assignment        which brokers hold which partition (pure)
    election          who leads a partition, and who is in sync (pure)
    preferred         when leaderships return to the first replica
    reassignment      how a partition moves to other brokers (pure)
    topic_plans       what a request to create or change a topic results in, or why it is refused (pure)
    suspicion         which brokers are probably dead, because their port refuses
    unproven          who leads after a power loss
    partition_ranges  partition numbers as a log line shows them

    controller        the claim to be the controller, and every write that only it may do
    decisions         what the controller decides each time it looks at the cluster
    topics, movement  its writes: topics; moves, and brokers that are being emptied

Rule: what every broker does, controller or not, is in `broker_runtime.membership`.
"""
