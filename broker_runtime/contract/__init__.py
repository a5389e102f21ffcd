"""What clients and brokers share: nouns, errors, settings, frames, schemas, messages, connections, waiting, logging."""
