"""Segments of a spool: files whose names say which entries they continue with."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


def header(name: SegmentName, senders: SenderTable) -> list[Contents]:
    """Return the header with which a segment begins: the senders of all entries before it."""
    described = {"format": FORMAT, "generation": name.generation, "first": name.first, "senders": senders.to_dict()}
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
        for frame in valid_frames(self._contents):
            end = frame.end
            if frame.kind is Kind.HEADER:
                self.senders = _senders(where, bytes(frame.payload))
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


def _senders(where: str, payload: bytes) -> SenderTable:
    described = json.loads(payload)
    if described["format"] > FORMAT:
        raise CheckpointError(
            f"{where} has format {described['format']}, which a newer version of dask_elastic wrote; this version "
            f"reads formats up to {FORMAT}. Upgrade dask_elastic on the client, the scheduler and all workers."
        )
    return SenderTable(described["senders"])
