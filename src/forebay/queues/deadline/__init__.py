"""`DeadlineQueue`: items with a deadline, given out when they are due."""
