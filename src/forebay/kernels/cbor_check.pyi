from typing import Final

NESTING_MAX: Final = 100
UNDEFINED: Final = 1
TRUNCATED: Final = -1
TOO_DEEP: Final = -2
TAGGED: Final = -3
KEY_NOT_TEXT: Final = -4
TRAILING: Final = -5
MALFORMED: Final = -6
SIMPLE_VALUE: Final = -7
NOT_A_MAP: Final = -8

def check(data: bytes) -> int: ...
