"""Transactions: what is decided about a transactional id, and how partitions come to know.

    transactional_id    the machine of one transactional id (pure): runs, batches, the one decision about each
    coordination        begins and decides transactions, each by one change of a znode; any broker does it
    ending              a leader's part: what is over in its partitions ends, in their logs
    finishing           has the leaders of a decision's partitions told, until all of them know it

A decision is one compare-and-set on the znode of its transactional id. Before it nothing of a batch is visible; after
it the outcome never changes, whoever is alive: every leader reads it from there. So there is no coordinator whose death
could lose a decision, and nothing but the znode has to be recovered.
"""
