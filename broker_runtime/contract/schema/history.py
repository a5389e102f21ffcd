"""The versions of a topic's schema, oldest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker_runtime.contract.errors import SchemaMismatchError
from broker_runtime.contract.requests import TopicInfo
from broker_runtime.contract.schema.topic import UNTYPED, TopicSchema
from broker_runtime.contract.schema.wire import schema_from_bytes


class SchemaHistory:
    """Schema ids 0, 1, … without a gap; each version only adds nullable columns to the one before. Immutable."""

    __slots__ = ("_versions",)

    def __init__(self, versions: Iterable[TopicSchema] = (UNTYPED,)) -> None:
        self._versions = tuple(versions)
        ids = [version.schema_id for version in self._versions]
        if not ids or ids != list(range(len(ids))):
            raise ValueError(f"schema ids must be 0, 1, … without a gap, not {ids}")

    @property
    def latest(self) -> TopicSchema:
        """The newest version."""
        return self._versions[-1]

    def get(self, schema_id: int) -> TopicSchema:
        """Version ``schema_id``. Raises `SchemaMismatchError` if it is newer than this history."""
        if not self.knows(schema_id):
            raise SchemaMismatchError(
                f"schema {schema_id} is not known here, only 0 to {len(self._versions) - 1} are: refresh the metadata"
            )
        return self._versions[schema_id]

    def knows(self, schema_id: int) -> bool:
        """Whether this history has ``schema_id``; if not, a reader refreshes its metadata before it decodes."""
        return 0 <= schema_id < len(self._versions)

    def __iter__(self) -> Iterator[TopicSchema]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)


def schema_history_from_info(info: TopicInfo) -> SchemaHistory:
    """The schemas in a topic's description; the untyped one if it has none. Raises `InvalidSchemaError`."""
    if not info.schemas:
        return SchemaHistory()
    return SchemaHistory(
        TopicSchema(schema_id=version.schema_id, arrow=schema_from_bytes(version.arrow), key=info.key)
        for version in info.schemas
    )
