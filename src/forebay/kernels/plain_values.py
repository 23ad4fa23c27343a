"""Says whether a value can be written to an event as it is, without looking closer.

A value that is not plain may still be one that an event can hold: the slow way finds out, and tells
what is wrong with it if it is not.
"""

from __future__ import annotations

try:
    import cython

    if not cython.compiled:
        raise ImportError("Cython's own stand-in is slower than ours")
except ImportError:
    from forebay.kernels import stand_in as cython

_DEPTH_MAX = cython.declare(cython.Py_ssize_t, 98)
_INTEGER_MIN = cython.declare(object, -(2**63))
_INTEGER_MAX = cython.declare(object, 2**64 - 1)


def is_plain(value: object) -> bool:
    """Says whether a value is plain: of the types of JSON and bytes, and within all bounds."""
    return _is_plain(value, 0)


@cython.cfunc
def _is_plain(value: object, depth: cython.Py_ssize_t) -> cython.bint:
    kind: object = type(value)
    if kind is str:
        return _is_text(value)
    if kind is int:
        return _INTEGER_MIN <= value <= _INTEGER_MAX
    if kind is dict:
        return depth <= _DEPTH_MAX and _is_plain_map(value, depth)
    if kind is list:
        return depth <= _DEPTH_MAX and _is_plain_list(value, depth)
    if kind is float:
        return value - value == 0
    return value is None or kind is bool or kind is bytes


@cython.cfunc
def _is_plain_map(items: dict, depth: cython.Py_ssize_t) -> cython.bint:
    for key, item in items.items():
        if type(key) is not str or not key or not _is_text(key):
            return False
        if not _is_plain(item, depth + 1):
            return False
    return True


@cython.cfunc
def _is_plain_list(items: list, depth: cython.Py_ssize_t) -> cython.bint:
    plain: cython.bint = True
    for item in items:
        plain = _is_plain(item, depth + 1)
        if not plain:
            break
    return plain


@cython.cfunc
def _is_text(value: str) -> cython.bint:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
