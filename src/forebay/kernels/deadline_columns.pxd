# The numbers of deadline_columns.py, as the compiler knows them.
cdef enum:
    COLUMNS = 8
    HEAD = 72
    BLOCK_HEAD = 24
    ENTRIES_MAX = 65536
    DEADLINE = 0
    ID = 1
    ENQUEUE = 2
    REQUEUE = 3
    COUNT = 4
    ATTRIBUTES = 5
    REASON = 6
    VALUE = 7
    TOMBSTONE = 1
    BURIED = 2
