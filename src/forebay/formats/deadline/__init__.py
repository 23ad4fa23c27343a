"""The files of a deadline queue: runs, write-ahead logs, manifest, mark."""
