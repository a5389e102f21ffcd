"""What a change came to whose first answer was lost, and whose second try was refused because it is made already.

Rule: the controller is asked how the topic is now, because other brokers may not have heard of the change yet. Where
that is exactly what was asked for, the change was made; where it is not, the refusal stands. Who else may have made
the same change in between cannot be told, and need not be.
"""

from __future__ import annotations

from broker_runtime.contract.errors import InvalidPartitionsError, InvalidSchemaError, TopicAlreadyExistsError
from broker_runtime.contract.requests import CreateTopicRequest
from broker_runtime.contract.schema import TopicSchema, schema_from_bytes
from pyspark_log.client.cluster import Cluster
from pyspark_log.client.topics import Topic


def made_topic(cluster: Cluster, request: CreateTopicRequest) -> Topic:
    """The topic that ``request`` asks for. Raises `TopicAlreadyExistsError` if it is another."""
    topic = _as_the_controller_knows(cluster, request.name)
    is_as_asked = (
        request.partitions in (None, len(topic.partitions))
        and request.replication_factor in (None, len(topic.partitions[0].replicas))
        and request.key == topic.key
        and topic.is_typed == (request.schema is not None)
        and (request.schema is None or topic.schemas.get(0).arrow.equals(schema_from_bytes(request.schema)))
        and request.config.items() <= topic.info.config.items()
    )
    if not is_as_asked:
        raise TopicAlreadyExistsError(f"topic {request.name!r} already exists, and differs from what was asked for")
    return topic


def check_partitions(cluster: Cluster, name: str, total: int) -> None:
    """Raises `InvalidPartitionsError` unless the topic has ``total`` partitions."""
    there = len(_as_the_controller_knows(cluster, name).partitions)
    if there != total:
        raise InvalidPartitionsError(f"topic {name!r} has {there} partitions, not {total}")


def added_schema(cluster: Cluster, name: str, wanted: TopicSchema) -> int:
    """The id of ``wanted``. Raises `InvalidSchemaError` if the topic has no such version, or another under its id."""
    schemas = _as_the_controller_knows(cluster, name).schemas
    if not schemas.knows(wanted.schema_id) or not schemas.get(wanted.schema_id).arrow.equals(wanted.arrow):
        raise InvalidSchemaError(
            f"the columns of topic {name!r} were changed by another meanwhile: it has "
            f"{', '.join(schemas.latest.arrow.names)}; wanted were {', '.join(wanted.arrow.names)}"
        )
    return wanted.schema_id


def _as_the_controller_knows(cluster: Cluster, name: str) -> Topic:
    return cluster.fetch_topics([name], to="controller")[0]
