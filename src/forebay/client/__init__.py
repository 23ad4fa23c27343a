"""Clients of a server: queues that any number of processes share. Page: docs/sharing.md.

`shared=True` in a constructor or in `forebay.open` makes an object of the same class whose verbs
are requests to the process that owns the queue.
"""
