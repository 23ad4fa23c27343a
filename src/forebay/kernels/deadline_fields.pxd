# The numbers of deadline_fields.py, as the compiler knows them.
cdef enum:
    ROW = 8
    STATE = 3
    TIME = 4
    REQUEUE = 5
    COUNT = 6
    ITEM = 1
    TOMBSTONE = 2
    MARK = 4
