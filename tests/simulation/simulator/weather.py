"""The weather part of a plan: how often the network loses, repeats and delays messages, and ZooKeeper loses answers."""

from __future__ import annotations

import random

from tests.simulation.simulator.network import Weather
from tests.simulation.simulator.zookeeper import ZooKeeperWeather


class PlannedWeather:
    """What a plan with these fields is asked for. Probabilities; ``ambiguity``: of a write to ZooKeeper whose answer is
    lost, once before it is carried out and once after."""

    __slots__ = ()
    loss: float
    repeats: float
    lateness: float
    ambiguity: float

    def weather(self) -> Weather:
        """The network's."""
        return Weather(lost=self.loss, repeated=self.repeats, late=self.lateness)

    def zookeeper_weather(self) -> ZooKeeperWeather:
        """ZooKeeper's."""
        return ZooKeeperWeather(lost_before=self.ambiguity, lost_after=self.ambiguity)


def draw_weather(rng: random.Random, *, is_stormy: bool) -> dict[str, float]:
    """The fields of `PlannedWeather`, all 0 where it is not stormy."""
    return {
        "loss": rng.choice([0.0, 0.01, 0.05]) if is_stormy else 0.0,
        "repeats": rng.choice([0.0, 0.02, 0.1]) if is_stormy else 0.0,
        "lateness": rng.choice([0.0, 0.02, 0.1]) if is_stormy else 0.0,
        "ambiguity": rng.choice([0.0, 0.01, 0.05, 0.15]) if is_stormy else 0.0,
    }
