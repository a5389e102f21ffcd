"""What tasks prove themselves with: a token of the user's, made on the driver, in place of its password.

    driver      has the options as the user gave them; asks a broker for a token (`task_token`)
    a read      the reader travels without password; each input partition has the token of its micro-batch
    a write     the writer travels with the token of its micro-batch

Rule: no password leaves the driver's processes. A process that read a password from a plan, a task or an executor's
memory would have it for good; a token ends after a day, and at once with its user or that user's password.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import InputPartition

from broker_runtime.contract.acls import CreateTokenRequest, CreateTokenResponse
from broker_runtime.contract.security import TokenFile
from pyspark_log.spark.option_table import CLIENT_PREFIX
from pyspark_log.spark.options import SinkOptions, SourceOptions
from pyspark_log.spark.worker_cluster import worker_cluster

_LIFETIME_MS: Final = 86_400_000
_USED_S: Final = 60.0  # so long one token is given to task after task, though a password set again may have ended it
_PASSWORD: Final = "sasl.password"  # noqa: S105 - the setting's name
_FILE: Final = "token.file"
_OF_PASSWORDS: Final = frozenset({_PASSWORD, _FILE, "sasl.username", "sasl.mechanism"})
_SECRETS: Final = frozenset(f"{CLIENT_PREFIX}{name}" for name in (*_OF_PASSWORDS, "token"))

_Options = TypeVar("_Options", SourceOptions, SinkOptions)

_tokens: Final[dict[tuple[object, ...], tuple[str, float]]] = {}


class TaskPartition(InputPartition):
    """An input partition, and what its task proves itself with; ``token`` None: nothing, or what the options say."""

    def __init__(self, value: Any, token: str | None = None) -> None:
        super().__init__(value)
        self.token = token

    def __repr__(self) -> str:
        return f"TaskPartition({self.value!r})"


def task_token(options: SourceOptions | SinkOptions) -> str | None:
    """A token for the tasks of the next micro-batch or query; None: the options have neither a password nor a file of
    the driver's. Asks a broker, once a minute, or reads the file. Raises what asking a broker raises, and
    `InvalidConfigError`."""
    if _FILE in options.client:
        return TokenFile(Path(options.client[_FILE])).read()
    if _PASSWORD not in options.client:
        return None
    key = (os.getpid(), *sorted(options.client.items()))
    token, made_s = _tokens.get(key, ("", 0.0))
    if not token or time.monotonic() - made_s > _USED_S:
        request = CreateTokenRequest(lifetime_ms=_LIFETIME_MS)
        token = worker_cluster(options).call("create_token", request, CreateTokenResponse).token
        for old in [each for each, (_, since_s) in _tokens.items() if time.monotonic() - since_s > _USED_S]:
            del _tokens[old]
        _tokens[key] = (token, time.monotonic())
    return token


def without_password(options: _Options) -> _Options:
    """The options, without what only the driver may have."""
    return replace(
        options, client={name: value for name, value in options.client.items() if name not in (_PASSWORD, _FILE)}
    )


def with_token(options: _Options, token: str | None) -> _Options:
    """The options of a task that proves itself with that."""
    if token is None:
        return options
    others = {name: value for name, value in options.client.items() if name not in _OF_PASSWORDS}
    return replace(options, client={**others, "token": token})


def without_secrets(given: Mapping[str, str]) -> dict[str, str]:
    """What Spark was given, without user, password and token."""
    return {name: value for name, value in given.items() if name.lower() not in _SECRETS}
