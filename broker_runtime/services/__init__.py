"""What a broker does: produce, fetch, read, topics, settings, metadata, offsets. A caller and a typed request in, a
response out.

Rule: every method begins with its `Caller` (`caller`). Knows nothing of Flight nor of streams, so that another listener
can stand beside it.
"""
