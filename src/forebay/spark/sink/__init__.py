"""The sink: what Spark writes to a log, passed to its owner through `inbox/`."""
