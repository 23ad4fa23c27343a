"""The sink: what Spark writes into a log, handed to its owner by way of `inbox/`."""
