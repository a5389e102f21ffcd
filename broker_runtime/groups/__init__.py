"""Consumer groups. Now: the offsets that groups have acknowledged, in ZooKeeper."""
