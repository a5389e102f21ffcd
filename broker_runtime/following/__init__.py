"""The follower's side of replication: fetching from leaders into this broker's logs.

follower          what is asked of one leader, and what is done with its answers: a machine without a network
follower_log      what that does to a log: append, cut, restart elsewhere, take over the marks
leader_link       one leader's fetch stream, and the thread that works through it
replica_fetching  all links of a broker, as hosting says whom to follow
peers             calls to other brokers beside fetching, over a connection to each that is kept
"""
