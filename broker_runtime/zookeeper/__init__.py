"""What brokers agree through: znodes and their structs, the client (the only importer of kazoo), the bundled server."""
