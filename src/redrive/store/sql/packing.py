"""Arrays for psycopg, packed by hand in PostgreSQL's binary format.

psycopg dumps a list element by element in Python; these few lines cost a tenth of that, and ids stay raw bytes.
Format: dimensions, has-nulls flag, element type, length, lower bound, then each element with its length
(PostgreSQL's ``array_recv``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import psycopg
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

_NULL = b"\xff\xff\xff\xff"


class Packed(bytes):
    """An array in binary form; subclasses carry the array's type."""

    __slots__ = ()


class UuidArray(Packed):
    """uuid[]"""

    __slots__ = ()


class Int8Array(Packed):
    """int8[]"""

    __slots__ = ()


class ByteaArray(Packed):
    """bytea[]"""

    __slots__ = ()


class _PackedDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Packed) -> Buffer | None:
        return bytes(obj)


def _register(kind: type[Packed], array_oid: int) -> None:
    dumper = type(f"{kind.__name__}Dumper", (_PackedDumper,), {"oid": array_oid})
    psycopg.adapters.register_dumper(kind, dumper)


_register(UuidArray, 2951)
_register(Int8Array, 1016)
_register(ByteaArray, 1001)


def _head(oid: int, length: int, nulls: int = 0) -> bytes:
    return struct.pack(">iiiii", 1, nulls, oid, length, 1)


def _empty(oid: int) -> bytes:
    return struct.pack(">iii", 0, 0, oid)


def uuids(values: Sequence[bytes]) -> UuidArray:
    """16-byte ids as uuid[]."""
    if not values:
        return UuidArray(_empty(2950))
    return UuidArray(_head(2950, len(values)) + b"\0\0\0\x10" + b"\0\0\0\x10".join(values))


def int8s(values: Sequence[int]) -> Int8Array:
    """Integers as int8[]."""
    if not values:
        return Int8Array(_empty(20))
    flat = [8] * (2 * len(values))
    flat[1::2] = values
    return Int8Array(_head(20, len(values)) + struct.pack(">" + "iq" * len(values), *flat))


def byteas(values: Sequence[bytes | None]) -> ByteaArray:
    """Bytes or None as bytea[]."""
    if not values:
        return ByteaArray(_empty(17))
    parts = [_head(17, len(values), int(None in values))]
    for value in values:
        parts.append(_NULL if value is None else len(value).to_bytes(4, "big") + value)
    return ByteaArray(b"".join(parts))
