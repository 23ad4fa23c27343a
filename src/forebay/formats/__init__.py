"""Bytes to records and back. No I/O, no threads, no clock."""
