"""Whether a cluster is as whole as it can be with the brokers that run: a pure function of what each of them says.

Rule: every running broker is asked, not one of them, because each believes what it read last; and only a leader itself
knows whether it leads (it tells its high watermark).
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_runtime.contract.requests import MetadataResponse, PartitionInfo


def what_is_missing(answers: Mapping[int, MetadataResponse]) -> str | None:
    """None if nothing is: else the first thing that is, as a sentence.

    ``answers``: for each running broker its answer to a metadata request for all topics with offsets.
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
            return f"broker {broker_id} does not know of broker {min(unknown)}"
        if answer.controller_id not in running:
            return f"broker {broker_id} takes broker {answer.controller_id} for the controller"
        for topic in answer.topics:
            for partition in topic.partitions:
                missing = _of_partition(partition, running)
                if missing is None and (topic.name, partition.partition, partition.leader_epoch) not in leading:
                    missing = f"broker {partition.leader} does not lead it yet"
                if missing is not None:
                    return f"{topic.name}-{partition.partition}, says broker {broker_id}: {missing}"
    return None


def _of_partition(partition: PartitionInfo, running: set[int]) -> str | None:
    if partition.leader not in running:
        return f"its leader is {partition.leader}"
    behind = (set(partition.replicas) & running) - set(partition.isr)
    if behind:
        return f"broker {min(behind)} is not in sync, only {list(partition.isr)}"
    return None
