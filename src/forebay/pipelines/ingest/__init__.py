"""The ingest: from queues to tables, each record once, and the proof of it."""
