"""The programs behind ./run and ./test, and what they measure."""
