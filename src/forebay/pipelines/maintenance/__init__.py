"""Jobs that look after queues and tables on Spark: an audit of every checksum."""
