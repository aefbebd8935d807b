"""The committed epochs of one source in the folder of a job's checkpoints, until a checkpoint covers them.

=================================================  ==================================================================
``epochs/SOURCE/rows/QUERY-EPOCH-...arrows``       the rows of one attempt: an Arrow stream, written while they arrive
``epochs/SOURCE/ledger/NUMBER.json``               the record of an epoch, which is its commit
``epochs/SOURCE/ended``                            the source takes no more epochs
=================================================  ==================================================================
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote, unquote

import pyarrow as pa

from dask_elastic.checkpoint import epoch_record
from dask_elastic.checkpoint.file_ref import Contents, FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.vocab.epoch import AttemptId, EpochRecord, SpoolFile
from dask_elastic.vocab.errors import CheckpointCorrupt

FOLDER = "epochs"

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What ends an Arrow stream."""

READERS = 8
"""Records that are read at the same time: an object store answers each after a while."""


@dataclass(frozen=True)
class Covered:
    """What a complete checkpoint contains of a source's epochs.

    Parameters
    ----------
    count : int
        Records that the checkpoint's own copy of the ledger contains.
    reached : tuple of (int or None)
        For each instance, the number up to which the checkpoint contains all rows of it; None for all numbers.
    """

    count: int = 0
    reached: tuple[int | None, ...] = ()

    def contains(self, record: EpochRecord) -> bool:
        """Return whether neither the record nor its rows are needed any more."""
        return record.number <= self.count and all(self._has(record.number, part.instance) for part in record.parts)

    def _has(self, number: int, instance: int) -> bool:
        reached = self.reached[instance] if instance < len(self.reached) else 0
        return reached is None or number <= reached


class EpochSpool:
    """Writes, reads and deletes the epochs of one source; all of this may block.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    source : str
        The source.

    Examples
    --------
    >>> spool = EpochSpool(CheckpointFolder("memory://epoch-spool"), "flights")
    >>> rows = pa.record_batch({"plane": ["N1", "N2"]})
    >>> attempt = AttemptId("q", 0, 0, "a")
    >>> file = spool.write_rows(attempt, rows.schema.serialize().to_pybytes(), [rows.serialize().to_pybytes()])
    >>> [batch.num_rows for batch in spool.read_rows(file)], spool.records()
    ([2], [])
    """

    def __init__(self, folder: CheckpointFolder, source: str):
        self.folder = folder
        self._place = f"{FOLDER}/{quote(source, safe='')}"
        self._ledger = f"{self._place}/ledger"

    @staticmethod
    def sources(folder: CheckpointFolder) -> list[str]:
        """Return the sources of which a folder has epochs."""
        return [unquote(name) for name in folder.folders(FOLDER)]

    # rows

    def write_rows(self, attempt: AttemptId, schema: Contents, chunks: Iterable[Contents]) -> SpoolFile:
        """Write the rows of an attempt; when this returns, they are durable.

        Parameters
        ----------
        attempt : AttemptId
            The attempt.
        schema : bytes-like
            The schema, as an Arrow IPC message.
        chunks : iterable of bytes-like
            Record batches, as Arrow IPC messages. If iterating raises, nothing remains.

        Returns
        -------
        SpoolFile
            The file.

        Raises
        ------
        CheckpointError
            If it cannot be written.
        """
        path = f"{self._place}/rows/{_prefix(attempt.query, attempt.epoch)}{attempt.partition}-{attempt.attempt}.arrows"
        found = self.folder.write(path, _stream(schema, chunks))
        return SpoolFile(found.path, found.nbytes, found.checksum)

    def read_rows(self, file: SpoolFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an attempt, after checking that all of them are what was written.

        Raises
        ------
        CheckpointCorrupt
            If the file is missing or damaged.
        """
        with pa.ipc.open_stream(self.contents(file)) as reader:
            yield from reader

    def contents(self, file: SpoolFile) -> pa.Buffer:
        """Return the rows of an attempt as an Arrow IPC stream; raises as `read_rows` does."""
        return self.folder.read(FileRef(*file))

    def missing(self, files: Iterable[SpoolFile]) -> list[str]:
        """Return the paths of files that do not exist, or have another size."""
        found = self.folder.sizes(f"{self._place}/rows")
        return [file.path for file in files if found.get(file.path.rpartition("/")[2]) != file.nbytes]

    def drop_rows(self, paths: Iterable[str]) -> None:
        """Delete files of attempts that were not chosen."""
        for path in paths:
            self.folder.delete(path)

    # the ledger

    def append(self, record: EpochRecord) -> None:
        """Write a record: when this returns, its epoch is committed.

        Raises
        ------
        CheckpointError
            If it cannot be written, or another scheduler has written a record of this number.
        """
        self.folder.write(self._record_path(record.number), [epoch_record.to_bytes(record)])

    def found(self, number: int) -> EpochRecord | None:
        """Return the record of a number, which is durable then; None if there is none."""
        try:
            record = self._read(number)
        except CheckpointCorrupt:
            if f"{number:010d}.json" in self.folder.sizes(self._ledger):
                raise
            return None
        self.folder.make_durable(self._ledger)
        return record

    def withdraw(self, number: int) -> None:
        """Delete a record that was never read, and whose commit has failed."""
        self.folder.delete(self._record_path(number))

    def contains(self, record: EpochRecord) -> bool:
        """Return whether this very record is on storage, durably."""
        try:
            found = self._read(record.number)
        except CheckpointCorrupt:
            return False
        self.folder.make_durable(self._ledger)
        return found == record

    def records(self) -> list[EpochRecord]:
        """Return all records that were not swept, in the order of their numbers; they are durable then.

        Raises
        ------
        CheckpointCorrupt
            If one is missing or damaged.
        """
        numbers = self._numbers()
        for before, after in itertools.pairwise(numbers):
            if after != before + 1:
                where = self.folder.where(self._record_path(before + 1))
                raise CheckpointCorrupt(where, "the record of an epoch", "no such file")
        self.folder.make_durable(self._ledger)
        with ThreadPoolExecutor(READERS, thread_name_prefix="elastic-epochs") as pool:
            return list(pool.map(self._read, numbers))

    def _read(self, number: int) -> EpochRecord:
        path = self._record_path(number)
        where = self.folder.where(path)
        try:
            contents = self.folder.read_unchecked(path).to_pybytes()
        except FileNotFoundError:
            raise CheckpointCorrupt(where, "the record of an epoch", "no such file") from None
        return epoch_record.from_bytes(contents, where, number)

    def _numbers(self) -> list[int]:
        names = self.folder.sizes(self._ledger)
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())

    def _record_path(self, number: int) -> str:
        return f"{self._ledger}/{number:010d}.json"

    def files(self, records: Iterable[EpochRecord]) -> list[FileRef | str]:
        """Return the files of some epochs: the records by their paths, and what their rows are in."""
        found: list[FileRef | str] = []
        for record in records:
            found += [FileRef(*part.file) for part in record.parts if part.file is not None]
            found.append(self._record_path(record.number))
        return found

    # the end

    @property
    def end_path(self) -> str:
        """The file that notes that the source takes no more epochs."""
        return f"{self._place}/ended"

    def end(self) -> None:
        """Note that the source takes no more epochs."""
        self.folder.claim(self.end_path)

    @property
    def ended(self) -> bool:
        """Whether the source takes no more epochs."""
        return "ended" in self.folder.sizes(self._place)

    # deletion

    def sweep(self, covered: Covered) -> int:
        """Delete records that a checkpoint covers, and the rows of all attempts of their epochs; return the number.

        Rows go first: a crash in between leaves no rows without a record.
        """
        count = 0
        names = None
        for number in self._numbers():
            record = self._read(number) if number <= covered.count else None
            if record is None or not covered.contains(record):
                break
            names = names if names is not None else [*self.folder.sizes(f"{self._place}/rows")]
            prefix = _prefix(record.query, record.epoch)
            # What a killed worker left of an attempt has a hidden name.
            rows = (name for name in names if name.removeprefix(".").startswith(prefix))
            self.drop_rows(f"{self._place}/rows/{name}" for name in rows)
            self.folder.delete(self._record_path(number))
            count += 1
        return count

    def drop_uncommitted(self, records: Collection[EpochRecord]) -> None:
        """Delete the rows of attempts that no record names; called before any attempt of a new run is staged."""
        needed = {part.file.path for record in records for part in record.parts if part.file is not None}
        paths = [f"{self._place}/rows/{name}" for name in self.folder.sizes(f"{self._place}/rows")]
        self.drop_rows(path for path in paths if path not in needed)


def _digest(query: str) -> str:
    return hashlib.blake2s(query.encode(), digest_size=8).hexdigest()


def _prefix(query: str, epoch: int) -> str:
    """Return how the names of an epoch's files begin; names of queries may have characters that a path cannot have."""
    return f"{_digest(query)}-{epoch}-"


def _stream(schema: Contents, chunks: Iterable[Contents]) -> Iterator[Contents]:
    yield schema
    yield from chunks
    yield END_OF_STREAM
