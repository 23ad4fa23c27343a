"""The server of shared queues: one process that owns them, for many clients. Page: docs/sharing.md.

`python -m forebay.serve` starts it; a client does so if nobody serves a queue. One loop thread
receives requests, drives the steps of verbs and sends answers. It is the only thread that touches a
session; commits, long reads and background work run on the threads that queues have anyway.
"""
