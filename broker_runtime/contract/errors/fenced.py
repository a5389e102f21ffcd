"""Who meets one of these is stale: somebody newer took its place."""

from __future__ import annotations

from broker_runtime.contract.errors.base import PylogError


class FencedError(PylogError):
    """Somebody newer took the caller's place."""

    code = "FENCED"


class ProducerFencedError(FencedError):
    """A newer producer has the same identity."""

    code = "PRODUCER_FENCED"


class InvalidProducerEpochError(FencedError):
    """The producer's epoch is older than the partition's."""

    code = "INVALID_PRODUCER_EPOCH"


class StaleBrokerEpochError(FencedError):
    """The broker registered anew since."""

    code = "STALE_BROKER_EPOCH"


class StaleControllerEpochError(FencedError):
    """Another controller was elected since."""

    code = "STALE_CONTROLLER_EPOCH"


class InconsistentTopicIdError(FencedError):
    """The request names a topic by an id it no longer has: the topic was deleted and made anew."""

    code = "INCONSISTENT_TOPIC_ID"


class UnknownMemberIdError(FencedError):
    """The group does not know the member, or no longer: what it held may be others' by now."""

    code = "UNKNOWN_MEMBER_ID"


class StaleMemberEpochError(FencedError):
    """The member does not hold the partition in the epoch it says, so it cannot acknowledge anything of it."""

    code = "STALE_MEMBER_EPOCH"


class FencedInstanceIdError(FencedError):
    """Another process took the member's ``group.instance.id``."""

    code = "FENCED_INSTANCE_ID"
