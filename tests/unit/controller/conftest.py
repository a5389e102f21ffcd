"""Provides the cluster of three members from the tests of the membership."""

from tests.unit.membership.conftest import brokers, clock, refusing, server

__all__ = ["brokers", "clock", "refusing", "server"]
