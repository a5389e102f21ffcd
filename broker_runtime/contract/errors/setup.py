"""What the machine lacks, and how to mend it."""

from __future__ import annotations

from broker_runtime.contract.errors.base import PylogError


class SetupError(PylogError):
    """Something on this machine is missing or in the way; the message says how to mend it."""

    code = "SETUP"


class JavaNotFoundError(SetupError):
    """No Java, or one that is too old, for the bundled ZooKeeper."""

    code = "JAVA_NOT_FOUND"


class PortInUseError(SetupError):
    """Another process listens on the port."""

    code = "PORT_IN_USE"


class DirectoryLockedError(SetupError):
    """Another broker uses the data directory, or it belongs to another cluster or broker."""

    code = "DIRECTORY_LOCKED"


class NotAPylogBrokerError(SetupError):
    """The address answers, but not as pylog."""

    code = "NOT_A_PYLOG_BROKER"


class VersionMismatchError(SetupError):
    """Driver and executors, or client and broker, have versions that cannot work together."""

    code = "VERSION_MISMATCH"
