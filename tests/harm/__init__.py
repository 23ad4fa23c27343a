"""One harm to one file of a queue, for every kind, policy, state, file and harm: what it costs."""
