"""How often a broker looks at its peers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from broker_runtime.broker_replication import BrokerReplication


@pytest.mark.parametrize(("is_one_starting", "soon"), [(True, True), (False, False)])
def test_peer_that_may_be_starting_is_looked_at_again_soon(is_one_starting: bool, soon: bool) -> None:
    """Its partitions have other leaders until it answers."""
    replication = SimpleNamespace(member=SimpleNamespace(probe_peers=lambda: is_one_starting))
    pause_s = BrokerReplication.step_peers(cast(BrokerReplication, replication))
    assert (pause_s < 0.2) is soon
