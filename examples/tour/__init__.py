"""The tour that `./run` starts: events through queues into proven tables, with three kills."""
