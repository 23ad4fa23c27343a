"""Queues: each joins one format to one storage shape."""
