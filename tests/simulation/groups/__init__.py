"""The workload of groups: coordinators and members of consumer groups. Partitions only grow; there are no logs.

run                the stages of a run, and the workload itself (`GROUPS`)
plan               what a seed does
world              brokers, clients, their network and ZooKeeper, and the checker
broker             a broker that coordinates groups
ensemble           ZooKeeper as coordinators meet it: threads that stand still before a write, or in a call
client             a consumer: one process after the other that takes part in a group
heartbeat_thread   a process's heartbeats
positions          a process's partitions, and its commits
calls              how a client reaches its group's coordinator
topics             the topics that are consumed
faults             what goes wrong, and what operators do
checker            what must hold of a group after every step
situations         what the seeds are to reach
variants           coordinators and clients broken on purpose
"""
