"""Rows of several parts of a state, kept until their part is read: a few in memory, the others in temporary files."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from dask_elastic.vocab.errors import CheckpointError

MEMORY_BYTES = 64_000_000
"""Bytes of rows that are kept in memory."""

FILE_BYTES = 1 << 30
"""Bytes from which on rows go to another file: each file is open as long as it has rows."""


@dataclass(frozen=True)
class _Stretch:
    """Rows of one part in a file: so many Arrow streams from an offset."""

    offset: int
    streams: int


@dataclass(frozen=True)
class _File:
    """A temporary file without a name, which disappears with a process that is killed, and its rows by part."""

    handle: IO[bytes]
    stretches: defaultdict[int, list[_Stretch]] = field(default_factory=lambda: defaultdict(list))

    @property
    def nbytes(self) -> int:
        return self.handle.seek(0, os.SEEK_END)


class SpilledParts:
    """Keeps rows by part, each part's in the order in which they were added.

    Parameters
    ----------
    memory : int, optional
        Bytes of rows above which all are written to a file in the folder for temporary files (`TMPDIR`). A file is
        deleted when its rows were taken, and has no name before where the system allows that.

    Examples
    --------
    >>> with SpilledParts(memory=10) as parts:
    ...     parts.add(1, pa.record_batch({"k": [1, 2]}))
    ...     parts.add(0, pa.record_batch({"k": [3]}))
    ...     parts.add(1, pa.record_batch({"k": [4]}))
    ...     [batch.column("k").to_pylist() for batch in parts.take(1)]
    [[1, 2], [4]]
    """

    def __init__(self, memory: int | None = None) -> None:
        self._most = MEMORY_BYTES if memory is None else memory
        self._pending: dict[int, list[pa.RecordBatch]] = {}
        self._nbytes = 0
        self._files: list[_File] = []

    def __enter__(self) -> SpilledParts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pending.clear()
        while self._files:
            # What is still in its buffer after an error may not fit on the disk either.
            with suppress(OSError):
                self._files.pop().handle.close()

    def add(self, part: int, batch: pa.RecordBatch) -> None:
        """Keep rows.

        Parameters
        ----------
        part : int
            Their part.
        batch : RecordBatch
            The rows.

        Raises
        ------
        CheckpointError
            When a temporary file cannot be written.
        """
        self._pending.setdefault(part, []).append(batch)
        self._nbytes += batch.nbytes
        if self._nbytes > self._most:
            try:
                self._spill()
            except OSError as error:
                raise self._failure("write", error) from error

    def take(self, part: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, which are no longer kept then.

        Parameters
        ----------
        part : int
            The part.

        Yields
        ------
        RecordBatch
            The rows, in the order in which they were added.

        Raises
        ------
        CheckpointError
            When a temporary file cannot be read.
        """
        for file in list(self._files):
            try:
                for stretch in file.stretches.pop(part, ()):
                    yield from _read(file.handle, stretch)
                if not file.stretches:
                    self._files.remove(file)
                    file.handle.close()
            except (OSError, pa.ArrowException) as error:
                raise self._failure("read", error) from error
        batches = self._pending.pop(part, [])
        self._nbytes -= sum(batch.nbytes for batch in batches)
        yield from batches

    def _spill(self) -> None:
        if not self._files or self._files[-1].nbytes >= FILE_BYTES:
            self._files.append(_File(tempfile.TemporaryFile(prefix="dask_elastic-state-")))  # noqa: SIM115
        file = self._files[-1]
        for part, batches in sorted(self._pending.items()):
            file.stretches[part].append(_written(file.handle, file.nbytes, batches))
        # What is still in a buffer may not fit on the disk.
        file.handle.flush()
        self._pending.clear()
        self._nbytes = 0

    def _failure(self, step: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"cannot {step} state in the folder for temporary files, {tempfile.gettempdir()}: {type(error).__name__}: "
            f"{error}. Set the environment variable TMPDIR to a folder with as much space as the state of the largest "
            "executor, or read fewer parts: as many as executors need no such files."
        )


def _written(file: IO[bytes], offset: int, batches: list[pa.RecordBatch]) -> _Stretch:
    """Write one Arrow stream for each run of batches with the same schema, metadata included, at the end of a file."""
    streams = 0
    for _, run in itertools.groupby(batches, key=_SameSchema):
        # Many small batches would be slow to install.
        table = pa.Table.from_batches(run).combine_chunks()
        with pa.ipc.new_stream(pa.PythonFile(file, mode="w"), table.schema) as writer:
            writer.write_table(table)
        streams += 1
    return _Stretch(offset, streams)


class _SameSchema:
    """Compares batches by their schemas and the metadata of these."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.schema = batch.schema

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameSchema) and bool(self.schema.equals(other.schema, check_metadata=True))

    __hash__ = None  # type: ignore[assignment]


def _read(file: IO[bytes], stretch: _Stretch) -> Iterator[Any]:
    file.seek(stretch.offset)
    for _ in range(stretch.streams):
        yield from pa.ipc.open_stream(pa.PythonFile(file, mode="r"))
