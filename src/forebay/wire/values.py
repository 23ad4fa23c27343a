"""Values in messages: MessagePack, and extension types for what it has no type for. No I/O.

Only the classes of a vocabulary can be sent, and only their fields: nothing that comes from the
other side names code. Extension types, each with a MessagePack value inside:

| code | value | inside |
| --- | --- | --- |
| 1 | an object | its class, its fields: a list, or a map by name |
| 2 | an error | its class, its arguments, its attributes |
| 3 | a tuple | a list |
| 4 | a time | its text in ISO 8601, with its zone |
| 5 | a duration | days, seconds, microseconds |
| 6 | a text that is not Unicode | its bytes; lone surrogates as three bytes each |
| 7 | something that stays on the server | its class, its number, its value |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from forebay import errors
from forebay.errors import ForebayError, InvalidOption, ProtocolError

OBJECT, ERROR, TUPLE, TIME, DURATION, TEXT, HANDLE = range(1, 8)
_PLAIN = frozenset([bytes, int, float, bool, type(None)])
_BYTES_LIKE = (bytearray, memoryview)
_BASES: tuple[type[Any], ...] = (int, float, str, bytes)
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_ERRORS: dict[str, type[BaseException]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, BaseException)
}
_ERRORS |= {
    found.__name__: found
    for found in (
        *(OSError, TypeError, ValueError, KeyError, IndexError, OverflowError, RuntimeError),
        *(AttributeError, NotImplementedError, MemoryError, RecursionError, AssertionError),
    )
}
# What a class raises for fields that are none of its own, and what nests too deep.
_UNFIT = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_encoder = msgspec.msgpack.Encoder()
_encode, _encode_into = _encoder.encode, _encoder.encode_into
# Without memory, `encode` ends the process, where `encode_into`, which is slower, raises. What may
# be large goes the safe way.
_LARGE_BYTES, _LARGE_COUNT = 1 << 16, 1000


class Handle(NamedTuple):
    """Something that stays on the server: the name of its class, its number, and its value."""

    name: str
    number: int
    value: Any = None


class Vocabulary:
    """The classes whose objects can be sent, by their names; each is loaded at first use."""

    def __init__(self, classes: Mapping[str, Callable[[], type]]) -> None:
        self._classes = classes
        # Whether something large was packed since `relax`.
        self._large = False
        self._decode = msgspec.msgpack.Decoder(ext_hook=self.unpack).decode

    def pack(self, value: Any) -> Any:
        """Returns a value in the form that the encoder takes; raises `TypeError`."""
        kind = type(value)
        if kind is bytes:
            if len(value) > _LARGE_BYTES:
                self._large = True
            return value
        if kind in _PLAIN:
            if kind is int and not _INT_MIN <= value <= _INT_MAX:
                raise InvalidOption(f"{value} has more than 64 bits")
            return value
        if kind is str:
            return value if value.isascii() else self._pack_text(value)
        if kind is list:
            if len(value) > _LARGE_COUNT:
                self._large = True
            return [self.pack(item) for item in value]
        if kind is dict:
            return {self.pack(key): self.pack(item) for key, item in value.items()}
        if kind is tuple:
            return self._extension(TUPLE, [self.pack(item) for item in value])
        if kind.__name__ in self._classes and self._classes[kind.__name__]() is kind:
            return self._extension(OBJECT, [kind.__name__, self._state(value)])
        return self._pack_rare(value)

    def relax(self) -> None:
        """Packs as if nothing large had been packed yet."""
        self._large = False

    def unpack(self, code: int, data: memoryview) -> Any:
        """Makes a value from an extension type; raises `ProtocolError`."""
        try:
            return self._made(code, self._decode(data))
        except (msgspec.MsgspecError, *_UNFIT) as error:
            raise ProtocolError(f"not a value of type {code}: {error}") from None

    def _pack_rare(self, value: Any) -> Any:
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise InvalidOption(f"{value!r}: must have a time zone")
            return self._extension(TIME, value.isoformat())
        if isinstance(value, timedelta):
            return self._extension(DURATION, [value.days, value.seconds, value.microseconds])
        if isinstance(value, _BYTES_LIKE):
            return bytes(value)
        if isinstance(value, Handle):
            return self._extension(HANDLE, [value.name, value.number, self.pack(value.value)])
        if isinstance(value, BaseException):
            return self._extension(ERROR, self._parts_of(value))
        if isinstance(value, Mapping):
            return self.pack(dict(value))
        for base in _BASES:
            # Of a class of its own, such as a member of an enumeration.
            if isinstance(value, base):
                return self.pack(base(value))
        if isinstance(value, Iterable):
            return self.pack(list(value))
        raise TypeError(f"{type(value).__name__} cannot be sent to a shared queue")

    def _state(self, value: Any) -> Any:
        if is_dataclass(value):
            return {each.name: self.pack(getattr(value, each.name)) for each in fields(value)}
        return [self.pack(part) for part in value.__reduce__()[1]]

    def _parts_of(self, error: BaseException) -> list[Any]:
        name = type(error).__name__
        attributes = {key: self._packed_or_text(part) for key, part in vars(error).items()}
        arguments = [self._packed_or_text(part) for part in error.args]
        if isinstance(error, OSError):
            # The class of an `OSError` follows from its number.
            name, arguments = "OSError", [error.errno, error.strerror, error.filename]
        elif _ERRORS.get(name) is not type(error):
            name, arguments, attributes = "ForebayError", [f"{name}: {error}"], {}
        return [name, arguments, attributes]

    def _packed_or_text(self, part: Any) -> Any:
        try:
            return self.pack(part)
        except (TypeError, InvalidOption):
            return self.pack(str(part))

    def _extension(self, code: int, inside: Any) -> msgspec.msgpack.Ext:
        if not self._large:
            return msgspec.msgpack.Ext(code, _encode(inside))
        data = bytearray()
        _encode_into(inside, data)
        return msgspec.msgpack.Ext(code, data)

    def _pack_text(self, value: str) -> Any:
        try:
            value.encode()
        except UnicodeEncodeError:
            return self._extension(TEXT, value.encode("utf-8", "surrogatepass"))
        return value

    def _made(self, code: int, inside: Any) -> Any:
        if code == OBJECT:
            name, state = inside
            made = self._classes[name]()
            return made(**state) if isinstance(state, dict) else made(*state)
        if code == ERROR:
            return _made_error(*inside)
        if code == TUPLE:
            return tuple(inside)
        if code == TIME:
            return datetime.fromisoformat(inside)
        if code == DURATION:
            return timedelta(*inside)
        if code == TEXT:
            return inside.decode("utf-8", "surrogatepass")
        if code == HANDLE:
            return Handle(*inside)
        raise ProtocolError(f"unknown extension type {code}")


def _made_error(name: str, arguments: list[Any], attributes: dict[str, Any]) -> BaseException:
    """Makes an error without its constructor, whose parameters differ from its arguments."""
    found = _ERRORS.get(name, ForebayError)
    if found is OSError:
        return OSError(*arguments)
    made = found.__new__(found)
    made.args = tuple(arguments)
    vars(made).update(attributes)
    return made
