"""Open tables: Parquet files that others wrote, committed to a table in one of three formats.

Nothing here knows Spark: tasks write data files (`files`), one process commits them (`protocol`).
"""
