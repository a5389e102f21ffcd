"""The cluster of three members that the tests of the membership have."""

from tests.unit.membership.conftest import brokers, clock, refusing, server

__all__ = ["brokers", "clock", "refusing", "server"]
