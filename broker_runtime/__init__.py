"""The log and its brokers. Knows nothing of Spark and never imports `pyspark_log`.

contract/      what clients and brokers share, and the only part that clients import
log/           one partition on disk
replication/   one hosted partition: high watermark, waiting readers and writers
zookeeper/     the znodes, the client (only importer of kazoo), the bundled server
controller/    decisions about topics and leaders, and what carries them out
groups/        consumer groups: members, who coordinates them, the offsets they have acknowledged
security/      users, certificates, tokens, access lists: who may do what
services/      produce, fetch, metadata, topics: what a broker does, without a word of Flight
server/        Flight: translates, nothing else
broker.py      composition root
"""
