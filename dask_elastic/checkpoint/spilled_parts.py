"""Rows of several parts of a state, kept until their part is read: a few in memory, the others in temporary files."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from dask_elastic.vocab.errors import CheckpointError

MEMORY_BYTES = 64_000_000
"""Bytes of rows that are kept in memory."""


@dataclass(frozen=True)
class _Stretch:
    """The rows of one part in a file: so many Arrow streams from an offset."""

    offset: int
    streams: int


class SpilledParts:
    """Keeps rows by part, each part's in the order in which they were added.

    Parameters
    ----------
    memory : int, optional
        Bytes of rows above which all are written to a file in the folder for temporary files (`TMPDIR`). A file is
        deleted when its rows were taken.

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
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[Path, dict[int, _Stretch]] = {}

    def __enter__(self) -> SpilledParts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pending.clear()
        self._files.clear()
        if self._folder is not None:
            self._folder.cleanup()

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
        for path, stretches in list(self._files.items()):
            if part in stretches:
                try:
                    yield from _read(path, stretches.pop(part))
                    if not stretches:
                        del self._files[path]
                        path.unlink()
                except (OSError, pa.ArrowException) as error:
                    raise self._failure("read", error) from error
        batches = self._pending.pop(part, [])
        self._nbytes -= sum(batch.nbytes for batch in batches)
        yield from batches

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="dask_elastic-state-", ignore_cleanup_errors=True)
            self._numbers = itertools.count()
        path = Path(self._folder.name) / f"{next(self._numbers)}.arrows"
        with pa.OSFile(str(path), "wb") as file:
            self._files[path] = {part: _written(file, batches) for part, batches in sorted(self._pending.items())}
        self._pending.clear()
        self._nbytes = 0

    def _failure(self, step: str, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"cannot {step} state in the folder for temporary files, {tempfile.gettempdir()}: {type(error).__name__}: "
            f"{error}. Set the environment variable TMPDIR to a folder with as much space as the state of the largest "
            "executor, or read fewer parts: as many as executors need no such files."
        )


def _written(file: pa.NativeFile, batches: list[pa.RecordBatch]) -> _Stretch:
    """Write one Arrow stream for each run of batches with the same schema, metadata included."""
    offset, streams = file.tell(), 0
    for _, run in itertools.groupby(batches, key=_SameSchema):
        # Many small batches would be slow to install.
        table = pa.Table.from_batches(run).combine_chunks()
        with pa.ipc.new_stream(file, table.schema) as writer:
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


def _read(path: Path, stretch: _Stretch) -> Iterator[Any]:
    with pa.OSFile(str(path)) as file:
        file.seek(stretch.offset)
        for _ in range(stretch.streams):
            yield from pa.ipc.open_stream(file)
