"""The root of the tree of errors."""

from __future__ import annotations

from typing import ClassVar


class PylogError(Exception):
    """Base of all errors of pylog.

    ``code`` is stable and machine-readable, ``retriable`` says whether the same call may succeed later,
    ``message`` is the text without the code. ``str(error)`` is ``[CODE] message``.
    """

    code: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"
