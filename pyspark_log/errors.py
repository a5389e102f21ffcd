"""The tree of errors that users meet (`broker_runtime.contract.errors` draws it), under the name they import.

Every class is here by its own name: ``except pyspark_log.errors.UnknownTopicOrPartitionError``.
"""

from broker_runtime.contract.errors import *  # noqa: F403 — the tree and nothing else; its module has no other names
from broker_runtime.contract.errors import PylogError as PylogError
from broker_runtime.contract.errors import all_error_classes, error_from_code

__all__ = [error.__name__ for error in all_error_classes()]
__all__ += ["error_from_code", "all_error_classes"]
