"""What a broker does: produce, fetch, read, topics, settings, metadata, offsets. Typed requests in, responses out.

Rule: knows nothing of Flight nor of streams, so that another listener can stand beside it.
"""
