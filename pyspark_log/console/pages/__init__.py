"""The pages, by subject: functions of a `Visit`. What changes something has a path of its own below its page's.

overview        the cluster at a glance, and the brokers
topics          the topics, one topic, making one
records         reading records, writing one
groups          the groups, one group, resetting it
queries         Spark queries and transactions
moves           moving partitions, electing leaders
access          users and access control lists
"""

from __future__ import annotations

from typing import Final

from pyspark_log.console.pages import access, groups, moves, overview, queries, records, topics
from pyspark_log.console.visit import Act, View

VIEWS: Final[tuple[tuple[str, View], ...]] = (
    ("/", overview.overview),
    ("/brokers", overview.brokers),
    ("/brokers/{broker}", overview.broker),
    ("/topics", topics.topics),
    ("/topics-new", topics.new_topic),
    ("/topics/{topic}", topics.topic),
    ("/topics/{topic}/records", records.records),
    ("/topics/{topic}/produce", records.produce_form),
    ("/groups", groups.groups),
    ("/groups/{group}", groups.group),
    ("/groups/{group}/reset", groups.reset_form),
    ("/queries", queries.queries),
    ("/transactions", queries.transactions),
    ("/moves", moves.moves),
    ("/access", access.access),
)
"""What is shown, by path."""

ACTS: Final[tuple[tuple[str, Act], ...]] = (
    ("/topics-new/create", topics.create),
    ("/topics/{topic}/settings", topics.alter),
    ("/topics/{topic}/partitions", topics.add_partitions),
    ("/topics/{topic}/columns", topics.add_columns),
    ("/topics/{topic}/delete", topics.delete),
    ("/topics/{topic}/produce/send", records.send),
    ("/groups/{group}/reset/apply", groups.apply_reset),
    ("/groups/{group}/remove", groups.remove_members),
    ("/groups/{group}/delete", groups.delete),
    ("/transactions/abort", queries.abort),
    ("/moves/start", moves.start),
    ("/moves/cancel", moves.cancel),
    ("/moves/elect", moves.elect),
)
"""What is changed, by path: the part before the last is the page's."""

NAVIGATION: Final = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/queries", "Spark queries"),
    ("/transactions", "Transactions"),
    ("/brokers", "Brokers"),
    ("/moves", "Moves and leaders"),
    ("/access", "Users and ACLs"),
)
"""The links of every page; a page's ``section`` is one of the paths."""
