"""What clients and brokers share: nouns, errors, settings, frames, schemas, messages. No I/O, no threads."""
