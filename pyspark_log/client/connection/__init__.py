"""Connections to brokers: what a topic is, who leads what, and calls that are routed and retried.

Rule: every call of a client goes through `cluster`, and every use of Flight through a `broker_runtime.contract.link`.

channel        one connection to one broker, for actions
topics         topics as metadata describes them
coordinator    which broker coordinates a group
cluster        metadata, routing, retries: every call of a client goes through it
leaders        a question to the leaders of many partitions, until each has answered
offsets        where logs begin and end, and what groups have committed
strangers      which other service answers at an address where a broker was expected
"""
