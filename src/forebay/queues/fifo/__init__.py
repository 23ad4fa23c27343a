"""`Fifo`: push, pop, peek, take; entries that expire; fixed-size files."""
