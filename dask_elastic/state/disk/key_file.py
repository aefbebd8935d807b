"""The key columns of all slots in a file, in slot order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dask_elastic.state.disk.unnamed_files import UnnamedFiles
from dask_elastic.state.index import Slots
from dask_elastic.state.key_columns import KeyColumns
from dask_elastic.vocab.arrow_arrays import array_of, no_rows

_ROWS = 8192


class KeyFile(KeyColumns):
    """The users' key values, in a file in parts of some thousand rows; the newest rows are in memory.

    Parameters
    ----------
    schema : Schema
        As for `KeyColumns`.
    files : UnnamedFiles
        Makes the file.

    Examples
    --------
    >>> import tempfile
    >>> keys = KeyFile(pa.schema({"plane": pa.string()}), UnnamedFiles(tempfile.gettempdir()))
    >>> keys.append(pa.record_batch({"plane": ["a", "b"]}))
    >>> keys.take(np.array([1, 0]))["plane"].to_pylist()
    ['b', 'a']
    """

    def __init__(self, schema: pa.Schema, files: UnnamedFiles) -> None:
        super().__init__(schema)
        self._file = files.open()
        self._parts: list[tuple[int, int]] = []
        self._firsts: list[int] = [0]
        self._tail_rows = 0

    def append(self, keys: pa.RecordBatch) -> None:
        """Add the keys of the next slots, in the declared schema.

        Raises
        ------
        StateDiskError
            If the disk is full; nothing is added then.
        """
        if self._tail_rows >= _ROWS:
            self._write_tail()
        super().append(keys)
        self._tail_rows += keys.num_rows

    def _write_tail(self) -> None:
        tail = self._tail()
        parts = [tail.slice(start, _ROWS) for start in range(0, tail.num_rows, _ROWS)]
        encoded = [part.serialize() for part in parts]
        written = [(self._file.append(memoryview(data)), data.size) for data in encoded]
        self._parts += written
        for part in parts:
            self._firsts.append(self._firsts[-1] + part.num_rows)
        self._chunks = []
        self._tail_rows = 0

    def _tail(self) -> pa.RecordBatch:
        return super().take(np.arange(self._tail_rows))

    def take(self, slots: Slots | slice) -> pa.RecordBatch:
        """Return the keys of slots."""
        if isinstance(slots, slice):
            slots = np.arange(slots.start, slots.stop)
        part_of = np.searchsorted(self._firsts, slots, side="right") - 1
        order = np.argsort(part_of, kind="stable")
        bounds = np.flatnonzero(np.diff(part_of[order], prepend=-1))
        found = [
            self._part(int(part_of[some[0]])).take(array_of(slots[some] - self._firsts[int(part_of[some[0]])]))
            for some in np.split(order, bounds[1:])
            if len(some)
        ]
        if not found:
            return no_rows(self.schema)
        taken = pa.concat_batches(found)
        if len(found) == 1 or (order[1:] > order[:-1]).all():
            return taken
        back = np.empty(len(order), np.intp)
        back[order] = np.arange(len(order))
        return taken.take(array_of(back))

    def _part(self, number: int) -> pa.RecordBatch:
        if number == len(self._parts):
            return self._tail()
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(*self._parts[number])), self.schema)

    @property
    def nbytes(self) -> int:
        """The bytes of the keys."""
        return super().nbytes + self._file.nbytes
