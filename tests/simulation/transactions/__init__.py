"""The workload of transactions: writers as Spark's sink and as Kafka's producers, over the brokers of `partitions`.

run           the stages of a run, and the workload itself (`TRANSACTIONS`)
plan          what a seed does
world         the world of partitions, whose brokers coordinate groups and transactions as well
broker        what such a broker's process has beside its logs
calls         how a writer asks brokers: it blocks, asks again, and gives up
attempts      one attempt of a task, on an executor
query         a streaming query: its drivers, checkpoints and micro-batches
transfer      a producer that commits a group's offsets with what it writes
reader        a consumer of committed records
decisions     what is written about transactional ids in ZooKeeper
checker       what must hold of transactions after every step
faults        what goes wrong with writers
situations    what the seeds are to reach
variants      brokers and writers broken on purpose
"""
