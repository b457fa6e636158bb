"""Protocol Buffers on the wire: fields of a message as bytes.

Encoding: https://protobuf.dev/programming-guides/encoding/ - a key (number and wire type) before
each value; varints are little-endian groups of seven bits.
"""

from __future__ import annotations

import struct

from forestcoll.common.escape import escape

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """A number from 0 to 2^64; negative ones of signed types in two's complement."""
    if 0 <= value < 128:
        return bytes((value,))
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field of type int32, int64, uint32, uint64, bool or an enumeration."""
    return varint(field << 3 | VARINT) + varint(value)


def data(field: int, value: bytes) -> bytes:
    """A field of type bytes, or of a message."""
    return varint(field << 3 | LENGTH) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field of type string, fit to be shown."""
    return data(field, escape(value).encode())


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return varint(field << 3 | FIXED64) + value.to_bytes(8, "little")


def double(field: int, value: float) -> bytes:
    """A field of type double."""
    return varint(field << 3 | FIXED64) + struct.pack("<d", value)
