"""Frames of a segment: a kind, bytes and a checksum each, so that a torn end is told from damage."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from dask_elastic.checkpoint.file_ref import Contents

MAGIC = b"dE\x9fS"

_HEAD = struct.Struct("<4sBxxxII")
_OFFSET = struct.Struct("<Q")
_PAD = 8


class Kind(IntEnum):
    """What a frame contains."""

    HEADER = 1
    SCHEMA = 2
    ROWS = 3
    STREAM = 4
    END = 5
    SYNCED = 6


class Frame(NamedTuple):
    """A valid frame.

    Parameters
    ----------
    kind : Kind
        What it contains.
    payload : memoryview
        The bytes.
    end : int
        Where the next frame begins.
    """

    kind: Kind
    payload: memoryview
    end: int


def encoded(kind: Kind, payload: Iterable[Contents]) -> list[Contents]:
    """Return a frame as buffers.

    Examples
    --------
    >>> contents = memoryview(b"".join(encoded(Kind.ROWS, [b"ro", b"ws"])))
    >>> [(frame.kind.name, bytes(frame.payload), frame.end) for frame in valid_frames(contents)]
    [('ROWS', b'rows', 24)]
    """
    buffers = [memoryview(part).cast("B") for part in payload]
    length = sum(buffer.nbytes for buffer in buffers)
    padding = bytes(-length % _PAD)
    crc = _crc(kind, length, [*buffers, padding])
    return [_HEAD.pack(MAGIC, kind, length, crc), *buffers, padding]


def synced_frame(length: int) -> list[Contents]:
    """Return a frame that says that so many bytes of its segment were on storage when it was written."""
    return encoded(Kind.SYNCED, [_OFFSET.pack(length)])


def valid_frames(contents: memoryview) -> Iterator[Frame]:
    """Yield the frames up to the first that is not valid, or to the end."""
    start = 0
    while (found := _frame_at(contents, start)) is not None:
        yield found
        start = found.end


def is_damaged(contents: memoryview, valid: int) -> bool:
    """Return whether the bytes behind the valid frames were on storage once; if not, they are a torn end.

    Parameters
    ----------
    contents : memoryview
        A segment.
    valid : int
        The length of its valid frames.
    """
    text = bytes(contents[valid:])
    at = text.find(MAGIC)
    while at >= 0:
        found = _frame_at(contents, valid + at)
        if found is not None and found.kind is Kind.SYNCED and _OFFSET.unpack(found.payload)[0] > valid:
            return True
        at = text.find(MAGIC, at + 1)
    return False


def _frame_at(contents: memoryview, start: int) -> Frame | None:
    first = start + _HEAD.size
    if first > contents.nbytes:
        return None
    magic, kind, length, crc = _HEAD.unpack_from(contents, start)
    end = first + length + -length % _PAD
    if magic != MAGIC or end > contents.nbytes or kind not in _KINDS:
        return None
    if _crc(kind, length, [contents[first:end]]) != crc:
        return None
    return Frame(Kind(kind), contents[first : first + length], end)


def _crc(kind: int, length: int, buffers: Iterable[Contents]) -> int:
    crc = zlib.crc32(struct.pack("<BI", kind, length))
    for buffer in buffers:
        crc = zlib.crc32(buffer, crc)
    return crc


_KINDS = frozenset(Kind)
