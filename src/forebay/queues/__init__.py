"""Queues: each combines one format with one way to store it."""
