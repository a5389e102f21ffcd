"""One broker of the partitions' workload: a disk, and one process after the other that runs the product's code.

node                its lives: starts, stops, crashes, and the events that drive it
life                what one process has in memory
serving             the requests of clients: produce, fetch, offsets
follower_sessions   the fetches of followers, as their leader
replica_fetching    its own fetches from leaders, as a follower
disk                files that lose what was not fsynced, fail, and fill up
"""
