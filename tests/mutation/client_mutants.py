"""Mutants of groups and of the client. See `mutants`."""

from __future__ import annotations

from typing import Final

from tests.mutation.harness import Mutant

CLIENT: Final = (
    Mutant(
        name="commit_without_the_guard_of_the_claim",
        file="broker_runtime/groups/offsets.py",
        old="                    operations.insert(0, guard.check)\n",
        new="                    pass\n",
        breaks="A commit is written only while the claim of the coordinator stands.",
        tests=("tests/unit/groups/test_offset_guard.py",),
        simulation="groups",
    ),
    Mutant(
        name="member_is_gone_though_its_commit_is_under_way",
        file="broker_runtime/groups/member.py",
        old="return not self.commits_under_way and (self.state is MemberState.GONE or self.is_over(now_ms))",
        new="return self.state is MemberState.GONE or self.is_over(now_ms)",
        breaks="Nothing of a member is given on while a commit of it is under way.",
        tests=("tests/unit/groups/test_group_commits.py",),
        simulation="groups",
    ),
    Mutant(
        name="successor_adds_no_grace",
        file="broker_runtime/groups/hosted.py",
        old="GRACE_MS: Final = 5_000",
        new="GRACE_MS: Final = 0",
        breaks="A successor waits for as long as a deposed coordinator may have extended leases.",
        tests=("tests/unit/groups/test_coordinator.py",),
        simulation="groups",
    ),
    Mutant(
        name="superseded_commits_count",
        file="broker_runtime/groups/offsets.py",
        old="    return new.member_epoch < old.member_epoch or 0 <= new.sequence < old.sequence\n",
        new="    return False\n",
        breaks="A commit that arrives after a later one changes nothing.",
        tests=(
            "tests/unit/groups/test_offset_store.py",
            "tests/unit/groups/test_offset_guard.py",
        ),
        simulation="groups",
    ),
    Mutant(
        name="commit_for_what_was_given_later",
        file="broker_runtime/groups/group.py",
        old="granted_in <= member_epoch <= member.epoch",
        new="member_epoch <= member.epoch",
        breaks="A commit made before the member was given the partition is refused.",
        tests=("tests/unit/groups/test_group_commits.py",),
        simulation="groups",
    ),
    Mutant(
        name="offsets_are_written_over_others",
        file="broker_runtime/groups/offsets.py",
        old="Set(path, data, node.version)",
        new="Set(path, data, ANY_VERSION)",
        breaks="Committed offsets are changed by compare-and-set.",
        tests=(
            "tests/unit/groups/test_offset_store.py",
            "tests/unit/groups/test_offset_guard.py",
        ),
        simulation="groups",
    ),
    Mutant(
        name="lease_extended_by_a_deposed_coordinator",
        file="broker_runtime/groups/coordinator.py",
        old=("            hosted.require_standing(now_ms)\n            response"),
        new="            response",
        breaks="A coordinator that does not know whether its claim stands extends no lease.",
        tests=("tests/unit/groups/test_coordinator.py",),
        simulation="groups",
    ),
    Mutant(
        name="members_told_what_was_not_written",
        file="broker_runtime/groups/coordinator.py",
        old="return self._is_written(hosted, data) and self._adopt(hosted, plan)",
        new="return self._adopt(hosted, plan)",
        breaks="Members are told only what is in ZooKeeper.",
        tests=("tests/unit/groups/test_coordinator.py",),
        simulation="groups",
    ),
    Mutant(
        name="doubtful_batch_gets_another_number",
        file="pyspark_log/client/numbering.py",
        old=("        if outgoing.is_doubtful:\n            return False\n"),
        new="",
        breaks="A batch that may be in the log is never sent under another number.",
        tests=(
            "tests/unit/client/test_numbering.py",
            "tests/unit/client/test_exactly_once_model.py",
        ),
    ),
    Mutant(
        name="batches_are_repeated_in_the_order_they_came_back",
        file="pyspark_log/client/accumulator.py",
        old="for outgoing in sorted(queue.to_repeat, key=lambda outgoing: outgoing.serial):",
        new="for outgoing in queue.to_repeat:",
        breaks="What is sent again goes in the order of its first sending.",
        tests=(
            "tests/unit/client/test_accumulator.py",
            "tests/unit/client/test_exactly_once_model.py",
        ),
    ),
    Mutant(
        name="older_metadata_replaces_newer",
        file="pyspark_log/client/cluster.py",
        old="new.leader_epoch < old.leader_epoch for new",
        new="False for new",
        breaks="A client never goes back to an older leader epoch.",
        tests=("tests/unit/client/test_known_topics.py",),
    ),
    Mutant(
        name="lease_counts_from_the_answer",
        file="pyspark_log/client/membership.py",
        old="lease_until_s = sent.sent_s + response",
        new="lease_until_s = now_s + response",
        breaks="A member's lease begins when its heartbeat was sent.",
        tests=("tests/unit/client/test_membership.py",),
        simulation="groups",
    ),
)
