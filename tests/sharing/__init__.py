"""Queues that several processes share: clients, their server, and what happens when they end."""
