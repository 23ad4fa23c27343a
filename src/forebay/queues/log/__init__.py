"""`Log`: append, named consumers, replay, trimming."""
