"""Rows of a cut that changed before they were copied, in a file, grouped by ranges of slots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.state.codec import IDENTITY, StateRows, encode
from dask_elastic.state.disk.unnamed_files import UnnamedFile, UnnamedFiles
from dask_elastic.state.index import Slots
from dask_elastic.vocab.arrow_arrays import array_of, numpy_of
from dask_elastic.vocab.lock import MakeLock, NoLock

_SLOT = len(IDENTITY)
_BUFFERED_BYTES = 8 << 20
"""Bytes of rows in memory above which they are written to the file."""


class _Part(NamedTuple):
    """A batch in the file."""

    offset: int
    nbytes: int
    schema: pa.Schema


class KeptRows:
    """Takes rows in any order, and returns them by ranges of slots, in the order of their slots.

    Parameters
    ----------
    files : UnnamedFiles
        Makes the file, once rows are written to it.
    slots : int
        The number of slots.
    ranges : int
        The number of ranges, about.
    make_lock : callable, optional
        Makes the lock that is held during each call.

    Notes
    -----
    The keys of slots are not kept: they do not change, and those of slots in a row are read together. The lock is the
    last in the lock order.
    """

    def __init__(self, files: UnnamedFiles, slots: int, ranges: int, make_lock: MakeLock = NoLock) -> None:
        self._lock = make_lock()
        self._step = max(1, -(-slots // ranges))
        self._slots = slots
        self._buffer: list[pa.RecordBatch] = []
        self._buffered = 0
        self._files = files
        self._file: UnnamedFile | None = None
        self._parts: dict[int, list[_Part]] = defaultdict(list)

    @property
    def ranges(self) -> Iterator[range]:
        """The ranges of slots."""
        return (range(start, min(self._slots, start + self._step)) for start in range(0, self._slots, self._step))

    def add(self, rows: StateRows, slots: Slots) -> None:
        """Take rows; their keys are left out.

        Raises
        ------
        StateDiskError
            If there is no space for them.
        """
        bare = StateRows(
            rows.hashes,
            rows.checks,
            rows.shards,
            pa.RecordBatch.from_arrays([array_of(slots)], ["slot"]),
            rows.fields,
            rows.values,
            rows.deleted,
        )
        batch = encode(bare)
        with self._lock:
            self._buffer.append(batch)
            self._buffered += batch.nbytes
            if self._buffered > _BUFFERED_BYTES:
                self._write()

    def _write(self) -> None:
        file = self._file = self._file or self._files.open()
        for batch in _joined(self._buffer):
            slots = numpy_of(batch.column(_SLOT))
            bounds = np.flatnonzero(np.diff(slots // self._step)) + 1
            for start, end in zip([0, *bounds.tolist()], [*bounds.tolist(), len(slots)], strict=True):
                data = batch.slice(start, end - start).serialize()
                part = _Part(file.append(memoryview(data)), data.size, batch.schema)
                self._parts[int(slots[start]) // self._step].append(part)
        self._buffer, self._buffered = [], 0

    def take(self, slots: range) -> list[tuple[Slots, pa.RecordBatch]]:
        """Return the rows of one of the `ranges`, and their slots in rising order, as batches without keys.

        No row of the range may be added afterwards.

        Raises
        ------
        StateDiskError
            If they cannot be read.
        """
        with self._lock:
            if self._buffer:
                self._write()
            parts, file = self._parts.pop(slots.start // self._step, []), self._file
        batches = [
            pa.ipc.read_record_batch(pa.py_buffer(file.read(part.offset, part.nbytes)), part.schema)
            for part in parts
            if file is not None
        ]
        return [(numpy_of(batch.column(_SLOT)), batch) for batch in _joined(batches)]


def with_keys(batch: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of `KeptRows.take` with their keys, as `encode` returns them."""
    columns = [*batch.columns[:_SLOT], *keys.columns, *batch.columns[_SLOT + 1 :]]
    before = list(batch.schema)
    fields = [*before[:_SLOT], *keys.schema, *before[_SLOT + 1 :]]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=batch.schema.metadata))


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows of batches in the order of their slots, one batch for each schema: objects may be text or not."""
    joined = []
    while batches:
        schema = batches[0].schema
        whole = pa.concat_batches([batch for batch in batches if batch.schema.equals(schema)])
        joined.append(whole.take(pc.array_sort_indices(whole.column(_SLOT))))
        batches = [batch for batch in batches if not batch.schema.equals(schema)]
    return joined
