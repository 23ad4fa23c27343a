"""Store and forward: a queue, a place, an output. Page: docs/forwarding.md.

Every record ends delivered, set aside, still in the queue, or dropped by a limit that the user set,
and the four counts add up. `sources` reads queues, `outputs` says what an output is, `state` is
what survives a crash, `forwarder` joins them, and `manager` is the class that a program uses.
"""
