"""What a server and its clients say to each other, as bytes and values. Page: docs/protocol.md."""
