"""The spool of one instance of a source: an append-only log in the folder of the job's checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from dask_elastic.checkpoint.file_ref import Contents
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import newest_generation
from dask_elastic.checkpoint.local_appender import LocalAppender
from dask_elastic.checkpoint.spool.entry import Entry, EntryEncoder
from dask_elastic.checkpoint.spool.frames import synced_frame
from dask_elastic.checkpoint.spool.segment import Segment, SegmentName, header, newest_of_each
from dask_elastic.checkpoint.spool.sender_table import SenderTable
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

logger = logging.getLogger("dask_elastic.checkpoint")

SEGMENT_BYTES = 16 << 20
"""Bytes after which the next segment begins; whole segments are deleted, and read again after a restart."""


class GenerationEnded(CheckpointError):
    """A later generation of the job has taken over, so what this one appended may never be read."""


class SpoolLog:
    """The log of one instance of a source; one thread appends.

    Each generation of the job writes segments of its own. A later generation reserves its number before it reads the
    log, and an append succeeds only if no later number was reserved when it was complete. So what was appended
    successfully is read by the next generation, and what a lost worker still appends is not: the segments of the next
    generation replace it.

    Parameters
    ----------
    folder : CheckpointFolder
        The folder of the job's checkpoints.
    path : str
        The folder of the log there, see `path_of`.
    generation : int
        The generation of the job, which was reserved before.
    segment_bytes : int, optional
        The size from which on a new segment begins.

    Attributes
    ----------
    first, last : int
        The numbers of the oldest and the newest entry; entries are numbered from 1.
    senders : SenderTable
        The senders of all entries.
    ended : bool
        Whether the newest entry is the end of the input.

    Raises
    ------
    CheckpointCorrupt
        If entries are damaged or missing.
    CheckpointError
        If the storage fails.

    Examples
    --------
    >>> import pyarrow as pa
    >>> folder = CheckpointFolder("memory://spool-log")
    >>> log = SpoolLog(folder, path_of("run", "rows", 0), generation=1)
    >>> log.append([Entry(1, "sender", 1, pa.record_batch({"n": [7]}))])
    >>> again = SpoolLog(folder, path_of("run", "rows", 0), generation=2)
    >>> again.last, again.senders.last("sender"), [entry.rows["n"].to_pylist() for entry in again.entries(after=0)]
    (1, 1, [[7]])
    """

    def __init__(self, folder: CheckpointFolder, path: str, generation: int, segment_bytes: int = SEGMENT_BYTES):
        self._folder = folder
        self._path = path
        self._generation = generation
        self._segment_bytes = segment_bytes
        names = (SegmentName.of(file) for file in folder.sizes(path))
        earlier = sorted(name for name in names if name is not None and name.generation < generation)
        self._attempt = 0
        self._failed = False
        self._appender: LocalAppender | None = None
        self._encoder = EntryEncoder()
        self._size = 0
        self.last, self.senders, self.ended = 0, SenderTable(), False
        self._scan(earlier)
        self.first = self._segments[0].first if self._segments else 1
        self._read_before = newest_of_each(self._segments)
        counting = set(self._segments)
        self._left_out = [name for name in earlier if name not in counting]
        # What is read again are the entries of earlier generations.
        self._earlier = tuple(self._segments), self.last

    # reading

    def _scan(self, names: list[SegmentName]) -> None:
        """Read the newest segments until one has a header, for what counts, the senders and the last entry.

        What a lost worker wrote when the generation of that header had read the log would replace entries of still
        earlier generations, which that one may have acknowledged.
        """
        self._segments, newest = names, 0
        for name in reversed(names):
            segment = self._read(name)
            self.last = name.first - 1
            if segment.senders is not None:
                self._segments = names if segment.read is None else _counting(names, name.generation, segment.read)
                self.senders, self.ended = segment.senders, segment.ended
                newest = self._segments.index(name)
                break
        for entry in self._entries_of(tuple(self._segments[newest:]), None):
            self.senders.admit(entry.sender, entry.sequence)
            self.last, self.ended = entry.number, entry.rows is None

    def entries(self, after: int) -> Iterator[Entry]:
        """Yield the entries of earlier generations behind a number; segments are read one by one.

        Parameters
        ----------
        after : int
            The number of the last entry to leave out.

        Yields
        ------
        Entry
            In order, without a gap.

        Raises
        ------
        CheckpointCorrupt
            If entries are damaged or missing.
        """
        segments, last = self._earlier
        if after > last or (after + 1 < self.first and last):
            has = f"entries {self.first:,} to {last:,}" if last else "no entries"
            raise CheckpointCorrupt(self._folder.where(self._path), f"the entries behind {after:,}", has)
        for entry in self._entries_of(segments[_begin(segments, after) :], last):
            if entry.number > after:
                yield entry

    def files(self, after: int) -> list[str]:
        """Return the files that a log needs which continues behind an entry, after checking that they are complete.

        Parameters
        ----------
        after : int
            The number of the last entry that is not needed.

        Returns
        -------
        list of str
            Paths in the folder. The first segment has a header, by which repeated batches are recognised.

        Raises
        ------
        CheckpointCorrupt
            If entries are damaged or missing.
        """
        for _ in self.entries(after):
            pass
        segments, _ = self._earlier
        begin = _begin(segments, after)
        while begin and self._read(segments[begin]).senders is None:
            begin -= 1
        return [f"{self._path}/{name}" for name in segments[begin:]]

    def _entries_of(self, segments: Sequence[SegmentName], last: int | None) -> Iterator[Entry]:
        """Yield the entries of some segments; each replaces those of the ones before it from its first on."""
        following = segments[0].first if segments else 0
        for index, name in enumerate(segments):
            end = min((later.first - 1 for later in segments[index + 1 :]), default=last)
            if end is not None and end < name.first:
                continue
            segment = self._read(name)
            for entry in segment.entries():
                if end is not None and entry.number > end:
                    break
                if entry.number != following:
                    raise self._gap(name, following, f"entry {entry.number:,}")
                yield entry
                following += 1
            if end is not None and following <= end:
                raise self._gap(name, following, f"{segment.torn:,} torn bytes")
            if end is None and segment.torn:
                logger.warning(
                    "%s: %d bytes at the end were never completely written, and are left out",
                    self._where(name), segment.torn,
                )  # fmt: skip

    def _read(self, name: SegmentName) -> Segment:
        try:
            contents = self._folder.read_unchecked(f"{self._path}/{name}")
        except FileNotFoundError:
            raise CheckpointCorrupt(self._where(name), "a segment of a spool", "no such file") from None
        return Segment(self._where(name), contents)

    def _gap(self, name: SegmentName, expected: int, found: str) -> CheckpointCorrupt:
        return CheckpointCorrupt(self._where(name), f"entry {expected:,}", found)

    def _where(self, name: SegmentName) -> str:
        return self._folder.where(f"{self._path}/{name}")

    # writing

    def take_over(self) -> None:
        """Write down which segments this generation has read, before any entry of them is acknowledged.

        Raises
        ------
        GenerationEnded
            If a later generation of the job has taken over.
        CheckpointError
            If the storage fails.
        """
        if self._segments:
            buffers: list[Contents] = []
            self._begin(self.last + 1, buffers)
            self._appender = self._written(None, buffers)
            # The source may never start, and then nothing else would close it.
            self.close()

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries that continue the log; they are on storage when this returns.

        Parameters
        ----------
        entries : sequence of Entry
            At least one. If this raises, the same entries are appended again, with others behind them.

        Raises
        ------
        GenerationEnded
            If a later generation of the job has taken over.
        CheckpointError
            If the storage fails.
        """
        assert entries[0].number == self.last + 1, f"entry {entries[0].number} does not follow {self.last}"
        if self._failed:
            # Storage that can be written, but not read, would get these entries once more with each attempt.
            self._check_generation()
        buffers: list[Contents] = []
        if self._appender is None or self._size >= self._segment_bytes:
            self._begin(entries[0].number, buffers)
        for entry in entries:
            buffers += self._encoder.frames(entry)
        # Until all has succeeded, the next append begins a new segment, which replaces what this one may have written.
        appender, self._appender, self._failed = self._appender, None, True
        self._appender = self._written(appender, buffers)
        self._failed = False
        for entry in entries:
            self.senders.admit(entry.sender, entry.sequence)
        self.last, self.ended = entries[-1].number, entries[-1].rows is None

    def _written(self, appender: LocalAppender | None, buffers: list[Contents]) -> LocalAppender | None:
        """Write the newest segment, or append to it, and check that the generation has not ended meanwhile."""
        name = self._segments[-1]
        size = self._size + _length(buffers)
        mark = synced_frame(size)
        if not self._folder.appends:
            # The file appears complete or not at all.
            buffers += mark
        try:
            appender = self._folder.append(f"{self._path}/{name}", appender, buffers)
            self._check_generation()
            if appender is not None and not self._marked(name, appender, mark):
                appender.close()
                return None
        except BaseException:
            if appender is not None:
                appender.close()
            raise
        self._size = size + _length(mark)
        return appender

    def _check_generation(self) -> None:
        """Raise `GenerationEnded` if a later generation has taken over."""
        newest = newest_generation(self._folder)
        if newest > self._generation:
            raise GenerationEnded(
                f"{self._where(self._segments[-1])}: generation {newest} of the job has taken over from "
                f"{self._generation}"
            )

    def _marked(self, name: SegmentName, appender: LocalAppender, mark: list[Contents]) -> bool:
        """Write how much of a segment is on storage; returns whether there was room for it.

        It only tells damage from a torn end, so entries count without it, and the next ones go to another segment.
        """
        try:
            appender.write(mark)
        except OSError as error:
            logger.info("%s ends without a mark: %s", self._where(name), error)
            return False
        return True

    def _begin(self, first: int, buffers: list[Contents]) -> None:
        if self._appender is not None:
            self._appender.close()
            self._appender = None
        self._attempt += 1
        name = SegmentName(self._generation, first, self._attempt)
        self._segments.append(name)
        self._encoder = EntryEncoder()
        self._size = 0
        buffers += header(name, self.senders, self._read_before, self.ended)

    def delete_through(self, number: int) -> int:
        """Delete the segments that have no entries behind a number; return how many.

        Those that do not count are deleted, too: this generation has written that down.

        Parameters
        ----------
        number : int
            The newest entry that is not needed; called only when no restart begins before it.
        """
        while self._left_out:
            self._folder.delete(f"{self._path}/{self._left_out[-1]}")
            self._left_out.pop()
        deleted = 0
        while len(self._segments) > 1 and self._segments[1].first <= number + 1:
            self._folder.delete(f"{self._path}/{self._segments[0]}")
            del self._segments[0]
            self.first = self._segments[0].first
            deleted += 1
        return deleted

    def close(self) -> None:
        """Close the segment that is open."""
        if self._appender is not None:
            self._appender.close()
            self._appender = None


def _length(buffers: Sequence[Contents]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def _counting(names: Sequence[SegmentName], generation: int, read: Mapping[int, SegmentName]) -> list[SegmentName]:
    """Return the segments of a generation, and those of earlier ones that it has read."""
    return [
        name
        for name in names
        if name.generation == generation or (name.generation in read and name <= read[name.generation])
    ]


def _begin(segments: Sequence[SegmentName], after: int) -> int:
    """Return the index of the last segment that begins with the entry behind `after`, or before it."""
    return max((index for index, name in enumerate(segments) if name.first <= after + 1), default=0)


def path_of(run: str, source: str, instance: int) -> str:
    """Return where the log of an instance of a source is.

    Parameters
    ----------
    run : str
        The identifier of the job's run: a folder may have entries of a run that took no checkpoint.
    source : str
        The name of the source, by which a changed topology finds it.
    instance : int
        The instance.

    Returns
    -------
    str
        The path within the job's folder.

    Examples
    --------
    >>> path_of("5f2c", "orders/eu", 0)
    'spool/5f2c/orders%2Feu/0'
    """
    return f"spool/{run}/{quote(source, safe='')}/{instance}"
