"""Connections to brokers: what a topic is, who leads what, and calls that are routed and retried.

channel          one connection to one broker, for actions
topics           topics as metadata describes them
coordinator      which broker coordinates a group
cluster          metadata, routing, retries: every call of a client goes through it
leaders          a question to the leaders of many partitions, until each has answered
offsets          where logs begin and end, and what groups have committed
retry            how long to try
forking          what must end before a fork, and what begins again in the child
strangers        which other service answers at a port that is no broker's
"""
