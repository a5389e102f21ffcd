"""``logging.format=json``: what a broker process writes from its start to its stop."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("real_brokers")


@pytest.mark.parametrize(
    "program", [["-m", "broker_runtime"], ["-m", "pyspark_log.cli", "broker", "start"]], ids=["module", "pylog"]
)
def test_every_line_of_a_broker_is_one_json_object(new_broker, program: list[str]) -> None:
    """However it was started."""
    broker = new_broker(**{"logging.format": "json"})
    broker.program = program
    broker.start()
    broker.call("create_topic", name="t", partitions=1)
    assert broker.stop() == 0
    lines = [json.loads(line) for line in broker.output.splitlines()]
    assert all(line.keys() >= {"time", "level", "logger", "event", "fields"} for line in lines)
    by_event = {line["event"]: line["fields"] for line in lines}
    assert by_event["serve clients"]["broker"] == 1
    assert by_event["create topic"]["topic"] == "t"
    assert by_event["end broker"]["complete"] is True


def test_text_is_the_default_and_other_words_are_refused(new_broker) -> None:
    """By name, and with what is allowed."""
    broker = new_broker(**{"logging.format": "xml"})
    broker.launch()
    assert broker.exit_code() == 1
    assert "logging.format='xml': must be one of text, json" in broker.output
    broker = new_broker().start()
    assert broker.stop() == 0
    assert " INFO broker_runtime.broker serve clients broker=1 " in broker.output
