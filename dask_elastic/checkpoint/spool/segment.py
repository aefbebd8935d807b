"""Segments of a spool: files whose names say which entries they continue with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import Contents
from dask_elastic.checkpoint.spool.entry import Entry, EntryDecoder
from dask_elastic.checkpoint.spool.frames import Kind, encoded, is_damaged, valid_frames
from dask_elastic.checkpoint.spool.sender_table import SenderTable
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

FORMAT = 1
"""The version of the format that this version of dask_elastic writes; it reads all up to it."""

SUFFIX = ".spool"


class SegmentName(NamedTuple):
    """The name of a segment; in the order of names, each one replaces the entries from its first on.

    Parameters
    ----------
    generation : int
        The generation of the job that wrote it.
    first : int
        The number of its first entry.
    attempt : int
        Grows with each segment of a generation.
    """

    generation: int
    first: int
    attempt: int

    def __str__(self) -> str:
        """Return the name of the file."""
        return f"{self.generation:08d}-{self.first:016d}-{self.attempt:06d}{SUFFIX}"

    @classmethod
    def of(cls, file: str) -> SegmentName | None:
        """Return the segment of a file, None for a file of another kind.

        Examples
        --------
        >>> SegmentName.of(str(SegmentName(2, 17, 1))), SegmentName.of(".hidden")
        (SegmentName(generation=2, first=17, attempt=1), None)
        """
        parts = file.removesuffix(SUFFIX).split("-")
        if not file.endswith(SUFFIX) or len(parts) != 3 or not all(part.isdecimal() for part in parts):
            return None
        return cls(*map(int, parts))


def newest_of_each(names: Iterable[SegmentName]) -> dict[int, SegmentName]:
    """Return the newest segment of each generation.

    Examples
    --------
    >>> newest_of_each([SegmentName(1, 1, 1), SegmentName(1, 9, 2), SegmentName(3, 17, 1)])[1].first
    9
    """
    return {name.generation: name for name in sorted(names)}


def header(
    name: SegmentName,
    senders: SenderTable,
    read: Mapping[int, SegmentName] = MappingProxyType({}),
    ended: bool = False,
) -> list[Contents]:
    """Return the header with which a segment begins.

    Parameters
    ----------
    name : SegmentName
        The segment.
    senders : SenderTable
        The senders of all entries before it.
    read : mapping of int to SegmentName, optional
        The newest segment of each earlier generation that its generation has read. Later ones do not count.
    ended : bool, optional
        Whether the entry before it is the end of the input.
    """
    described = {
        "format": FORMAT,
        "generation": name.generation,
        "first": name.first,
        "senders": senders.to_dict(),
        "read": [*map(list, read.values())],
        "ended": ended,
    }
    return encoded(Kind.HEADER, [json.dumps(described).encode()])


class Segment:
    """A segment that was read.

    Parameters
    ----------
    where : str
        The path, for messages.
    contents : Buffer
        The whole file.

    Attributes
    ----------
    senders : SenderTable or None
        The senders before its first entry; None if even the header is torn.
    read : dict of int to SegmentName or None
        The newest segment of each earlier generation that its generation has read; None if unknown, as in segments of
        earlier versions.
    ended : bool
        Whether the entry before its first one is the end of the input.
    torn : int
        Bytes at the end that were never completely written.

    Raises
    ------
    CheckpointCorrupt
        If bytes are damaged that were on storage.
    CheckpointError
        If a newer version of dask_elastic wrote it.
    """

    def __init__(self, where: str, contents: pa.Buffer):
        self._contents = memoryview(contents)
        end, self.senders = 0, None
        self.read: dict[int, SegmentName] | None = None
        self.ended = False
        for frame in valid_frames(self._contents):
            end = frame.end
            if frame.kind is Kind.HEADER:
                self.senders, self.read, self.ended = _header(where, bytes(frame.payload))
        self._valid = end
        self.torn = self._contents.nbytes - end
        if self.torn and is_damaged(self._contents, end):
            raise CheckpointCorrupt(where, f"a valid frame at byte {end:,}", "damaged bytes")

    def entries(self) -> Iterator[Entry]:
        """Yield the entries in order.

        Yields
        ------
        Entry
            The entries of the valid frames.
        """
        decoder = EntryDecoder()
        for frame in valid_frames(self._contents[: self._valid]):
            if (entry := decoder.entry(frame)) is not None:
                yield entry


def _header(where: str, payload: bytes) -> tuple[SenderTable, dict[int, SegmentName] | None, bool]:
    described = json.loads(payload)
    if described["format"] > FORMAT:
        raise CheckpointError(
            f"{where} has format {described['format']}, which a newer version of dask_elastic wrote; this version "
            f"reads formats up to {FORMAT}. Upgrade dask_elastic on the client, the scheduler and all workers."
        )
    # Earlier versions wrote neither; with them, no segment followed the end of the input.
    read = described.get("read")
    newest = None if read is None else newest_of_each(SegmentName(*one) for one in read)
    return SenderTable(described["senders"]), newest, described.get("ended", False)
