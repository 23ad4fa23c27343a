"""`DeadlineQueue`: items with a deadline, dequeued when they are due."""
