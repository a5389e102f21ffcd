"""Whether a cluster is as healthy as its running brokers allow: a pure function of their answers.

Rule: every running broker is asked, because each knows only what it read last; and only the leader itself knows whether
it leads (it reports its high watermark).
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_runtime.contract.requests import MetadataResponse, PartitionInfo


def what_is_missing(answers: Mapping[int, MetadataResponse]) -> str | None:
    """The first thing that is missing, as a sentence; None if nothing is.

    ``answers``: each running broker's answer to a metadata request for all topics, with offsets.
    """
    running = set(answers)
    leading = {
        (topic.name, partition.partition, partition.leader_epoch)
        for broker_id, answer in answers.items()
        for topic in answer.topics
        for partition in topic.partitions
        if partition.leader == broker_id and partition.high_watermark >= 0
    }
    for broker_id, answer in answers.items():
        unknown = running - {broker.broker_id for broker in answer.brokers}
        if unknown:
            return f"broker {broker_id} does not know broker {min(unknown)}"
        if answer.controller_id not in running:
            if answer.controller_id is None:
                return f"broker {broker_id} knows no controller"
            return f"broker {broker_id} knows broker {answer.controller_id} as the controller, which is not running"
        for topic in answer.topics:
            for partition in topic.partitions:
                missing = _of_partition(partition, running)
                if missing is None and (topic.name, partition.partition, partition.leader_epoch) not in leading:
                    missing = f"broker {partition.leader} is not leading it yet"
                if missing is not None:
                    return f"{topic.name}-{partition.partition}, according to broker {broker_id}: {missing}"
    return None


def _of_partition(partition: PartitionInfo, running: set[int]) -> str | None:
    if partition.leader is None:
        return "it has no leader"
    if partition.leader not in running:
        return f"its leader is broker {partition.leader}, which is not running"
    behind = (set(partition.replicas) & running) - set(partition.isr)
    if behind:
        return f"broker {min(behind)} is not in sync; in sync are {list(partition.isr)}"
    return None
