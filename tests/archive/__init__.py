"""Archives: finished segments of queues in directories and object stores, and their readers."""
