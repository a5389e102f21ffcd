"""Mutants of leaders and followers. See `mutants`."""

from __future__ import annotations

from typing import Final

from tests.mutation.harness import Mutant

REPLICATION: Final = (
    Mutant(
        name="acknowledged_at_the_begin_of_the_frame",
        file="broker_runtime/replication/partition.py",
        old="self.log.high_watermark >= pending.next_offset",
        new="self.log.high_watermark >= pending.base_offset",
        breaks="A frame is acknowledged when the high watermark has passed its end.",
        tests=(
            "tests/unit/replication/test_leading.py",
            "tests/unit/replication/test_partition.py",
        ),
        simulation="partitions",
    ),
    Mutant(
        name="acknowledged_before_the_fsync",
        file="broker_runtime/replication/partition.py",
        old=("        if self.log.waits_for_device:\n            try:"),
        new=("        if False:\n            try:"),
        breaks="With flush.mode=ack only records on the device are acknowledged.",
        tests=(
            "tests/unit/replication/test_partition.py",
            "tests/unit/replication/test_leading.py",
        ),
        simulation="partitions",
    ),
    Mutant(
        name="append_under_any_leader_epoch",
        file="broker_runtime/replication/partition.py",
        old=("            led = self._require_led(leader_epoch)\n            epoch, in_sync"),
        new=("            led = self._require_led()\n            epoch, in_sync"),
        breaks="A producer that knows another leader epoch is refused.",
        tests=(
            "tests/unit/replication/test_partition.py",
            "tests/unit/replication/test_leading.py",
            "tests/unit/services/test_produce_and_fetch.py",
        ),
    ),
    Mutant(
        name="read_under_any_leader_epoch",
        file="broker_runtime/replication/partition.py",
        old=("        self.require_leader(leader_epoch)\n        high_watermark"),
        new=("        self.require_leader()\n        high_watermark"),
        breaks="A reader that knows another leader epoch is refused.",
        tests=(
            "tests/unit/replication/test_partition.py",
            "tests/unit/replication/test_leading.py",
            "tests/unit/services/test_produce_and_fetch.py",
        ),
    ),
    Mutant(
        name="served_up_to_the_end_of_the_log",
        file="broker_runtime/replication/partition.py",
        old="upto=high_watermark, at_least_one=at_least_one",
        new="upto=self.log.log_end_offset, at_least_one=at_least_one",
        breaks="Nobody reads at or above the high watermark.",
        tests=(
            "tests/unit/replication/test_partition.py",
            "tests/unit/replication/test_leading.py",
            "tests/unit/services/test_produce_and_fetch.py",
        ),
        simulation="partitions",
    ),
    Mutant(
        name="append_with_too_few_in_sync",
        file="broker_runtime/replication/partition.py",
        old="if acks == ACKS_ALL and in_sync < self.min_in_sync_replicas:",
        new="if False:",
        breaks="With acks=all nothing is appended below min.insync.replicas.",
        tests=(
            "tests/unit/replication/test_leading.py",
            "tests/unit/replication/test_partition.py",
        ),
    ),
    Mutant(
        name="latest_offset_at_once",
        file="broker_runtime/replication/partition.py",
        old="        if high_watermark < epoch_start:\n",
        new="        if False:\n",
        breaks="A new leader reports the latest offset only when its epoch's start is committed (KIP-207).",
        tests=("tests/unit/replication/test_leading.py",),
        simulation="partitions",
    ),
    Mutant(
        name="leader_counts_its_log_end",
        file="broker_runtime/replication/partition.py",
        old="led.advanced(before, extent.durable_end,",
        new="led.advanced(before, extent.log_end,",
        breaks="The leader counts for the high watermark with its durable end, not with its log end.",
        tests=(
            "tests/unit/replication/test_leading.py",
            "tests/unit/replication/test_partition.py",
        ),
        simulation="partitions",
    ),
    Mutant(
        name="follower_reports_its_log_end_as_durable",
        file="broker_runtime/following/follower_log.py",
        old="durable_end=extent.durable_end,",
        new="durable_end=extent.log_end,",
        breaks="A follower reports its durable end to its leader.",
        tests=(
            "tests/unit/following/test_follower.py",
            "tests/unit/following/test_follower_failures.py",
        ),
        simulation="partitions",
    ),
    Mutant(
        name="follower_is_committed_beyond_its_device",
        file="broker_runtime/following/follower_log.py",
        old="committed = min(high_watermark, extent.durable_end)",
        new="committed = min(high_watermark, extent.log_end)",
        breaks="A follower's high watermark never passes its durable end.",
        tests=(
            "tests/unit/replication/test_partition.py",
            "tests/unit/following/test_follower.py",
        ),
        simulation="partitions",
    ),
    Mutant(
        name="follower_cuts_what_is_committed",
        file="broker_runtime/following/follower_log.py",
        old="        log.refuse_to_lose(offset, leader_epoch)\n",
        new="        pass\n",
        breaks="A follower deletes nothing that it knows to be committed.",
        tests=(
            "tests/unit/following/test_follower.py",
            "tests/unit/following/test_follower_failures.py",
        ),
        simulation="partitions",
    ),
    Mutant(
        name="logs_are_compared_by_offsets_alone",
        file="broker_runtime/replication/divergence.py",
        old="return None if epoch == last_fetched_epoch and offset <= end else (epoch, end)",
        new="return None if offset <= end else (epoch, end)",
        breaks="Two logs are compared by the epoch of their last records, not by offsets alone (KIP-279).",
        tests=("tests/unit/replication/test_divergence.py",),
        simulation="partitions",
    ),
    Mutant(
        name="in_sync_set_counts_as_written",
        file="broker_runtime/replication/in_sync.py",
        old="ends, self.maximal | self._joining_soon()",
        new="ends, self.leadership.in_sync | self._joining_soon()",
        breaks="While a change of the in-sync set is pending, every possible member counts.",
        tests=("tests/unit/replication/test_in_sync.py",),
        simulation="partitions",
    ),
    Mutant(
        name="min_in_sync_counts_who_may_be_in",
        file="broker_runtime/replication/in_sync.py",
        old="if self.certain_count < min_in_sync or",
        new="if len(self.maximal) < min_in_sync or",
        breaks="min.insync.replicas counts only certain members of the in-sync set.",
        tests=("tests/unit/replication/test_in_sync.py",),
        simulation="partitions",
    ),
    Mutant(
        name="joins_before_the_epoch_begins",
        file="broker_runtime/replication/in_sync.py",
        old="known.end >= max(marks.high_watermark, marks.epoch_start)",
        new="known.end >= marks.high_watermark",
        breaks="A follower joins the in-sync set when it has reached the start of the leader's epoch.",
        tests=("tests/unit/replication/test_in_sync.py",),
        simulation="partitions",
    ),
    Mutant(
        name="fetch_of_an_earlier_life_counts",
        file="broker_runtime/replication/in_sync.py",
        old="if known is not None and broker_epoch < known.broker_epoch:",
        new="if False:",
        breaks="A broker's reports from before its current registration do not count.",
        tests=("tests/unit/replication/test_in_sync.py",),
        simulation="partitions",
    ),
)
