"""Which settings are in force for a topic or for this broker, and where each comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from broker_runtime.contract.errors import InvalidRequestError, UnknownTopicOrPartitionError
from broker_runtime.contract.requests import ConfigEntry, DescribeConfigRequest, DescribeConfigResponse
from broker_runtime.contract.settings import BrokerSettings, resolve, settings_of
from broker_runtime.services.caller import Caller
from broker_runtime.zookeeper.cluster_state import ClusterState


class ConfigService:
    """Describes settings. Thread-safe; never waits."""

    def __init__(self, cluster: Callable[[], ClusterState], settings: BrokerSettings) -> None:
        self._cluster = cluster
        self._settings = settings

    def describe_config(self, caller: Caller, request: DescribeConfigRequest) -> DescribeConfigResponse:
        """Every setting of the topic or the broker. A value is as a user would type it; "" means none.

        Raises `InvalidRequestError` unless exactly one of the two is named, and for another broker;
        `UnknownTopicOrPartitionError`.
        """
        if (request.topic is None) == (request.broker_id is None):
            raise InvalidRequestError("describe_config takes a topic or a broker_id, exactly one of both")
        if request.topic is not None:
            return self._topic(request.topic)
        if request.broker_id != self._settings.broker_id:
            raise InvalidRequestError(
                f"broker {self._settings.broker_id} cannot describe broker {request.broker_id}: ask that one"
            )
        # Which settings the file had is not remembered: whatever differs from the default counts as the broker's own.
        entries = {}
        for name, setting in settings_of("broker").items():
            value = getattr(self._settings, setting.keyword)
            default = None if setting.default is None else setting.parse(setting.default)
            entries[name] = ConfigEntry(value=setting.show(value), source="default" if value == default else "broker")
        return DescribeConfigResponse(entries=entries)

    def _topic(self, name: str) -> DescribeConfigResponse:
        topic = self._cluster().topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"no topic {name!r}")
        resolved = resolve("topic", topic.config)
        replicas = max(map(len, topic.record.assignment))
        in_force = replace(resolved, min_insync_replicas=resolved.min_in_sync(replicas))
        return DescribeConfigResponse(
            entries={
                setting_name: ConfigEntry(
                    value=setting.show(getattr(in_force, setting.keyword)),
                    source="topic" if setting_name in topic.config else "default",
                )
                for setting_name, setting in settings_of("topic").items()
            }
        )
