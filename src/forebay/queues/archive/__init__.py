"""Archives: finished segments of queues at another address, written and read (docs/archive.md)."""
