"""Files: how bytes reach the disk and come back. Knows no format."""
