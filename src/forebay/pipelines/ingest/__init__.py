"""The ingest: from queues to tables, each record once, with proof."""
