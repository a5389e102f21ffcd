"""What administrators ask and change.

admin          `Admin`
descriptions   topics with their offsets
health         what is wrong with a cluster, and what can be done about it
movement       moving partitions, elections, emptying a broker
groups         consumer groups
"""
