"""Consumer groups: who is a member, who has which partition, who coordinates it, what was acknowledged.

assignor.py, shares.py   who should have what (pure)
member.py, group.py      the machine of one group (pure): heartbeats, plans, whose commits count
claims.py                which broker coordinates a group, by a claim in ZooKeeper with an epoch
hosted.py                the groups that one broker has claimed: restored, verified, dropped
coordinator.py           answers from memory; the loop that writes what changes
offsets.py               committed offsets, written under the claim
positions.py             the offsets of all groups that a broker speaks for, for who watches them
removal.py               removes groups and offsets
"""
