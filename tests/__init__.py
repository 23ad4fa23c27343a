"""The tests; the tree mirrors src/forebay."""
