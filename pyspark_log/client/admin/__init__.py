"""What administrators ask and change.

Rule: a function here is a request or two to brokers; no state is kept but connections.

admin           `Admin`
descriptions    topics with their offsets, brokers' disks
health          the problems of a cluster, and what can be done about them
overview        all that a person on call must know
movement        moving partitions, elections, decommissioning a broker
groups          consumer groups
transactions    transactional ids, what is open, aborting it
"""
