"""The programs behind ./run and ./test, and their time budgets."""
