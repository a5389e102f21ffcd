"""Which topics changed since a broker last looked: one data watch on ``/changes`` instead of one per znode.

Rule: what was missed is never guessed. Where the version did not rise by exactly one since the last look, everything
counts as changed. The news are taken before what they are about is read, so nothing falls between.
"""

from __future__ import annotations

from broker_runtime.contract.errors import CorruptRecordError
from broker_runtime.zookeeper.session import Watch, ZooKeeperClient
from broker_runtime.zookeeper.znodes import CHANGES, ChangeNews, from_json


class ChangeFeed:
    """What one broker has seen of the changes. Used under its lock."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client
        self._seen: int | None = None

    def take(self, watch: Watch) -> tuple[str, ...] | None:
        """The names of the topics that changed since the last call; None: any of them may have. ``watch`` is told of
        the next change. Who cannot deal with what was taken counts on everything having changed the next time. Raises
        `ZooKeeperUnavailableError`, `NoNodeError`; then nothing is taken.
        """
        node = self._client.get(CHANGES, watch=watch)
        seen, self._seen = self._seen, node.version
        if seen == node.version:
            return ()
        if seen is None or seen + 1 != node.version:
            return None
        try:
            return from_json(node.data, ChangeNews, CHANGES).topics
        except CorruptRecordError:
            return None
