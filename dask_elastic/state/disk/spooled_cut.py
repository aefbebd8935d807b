"""The cut of a store on disk: its rows wait in a file until they are written to the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from dask_elastic.state.codec import EncodedRows, StateRows, encode
from dask_elastic.state.disk.unnamed_files import UnnamedFiles


class SpooledCut:
    """Encoded rows in a file.

    Parameters
    ----------
    files : UnnamedFiles
        Makes the file.
    """

    def __init__(self, files: UnnamedFiles) -> None:
        self._file = files.open()
        self._parts: list[EncodedRows] = []

    def append(self, rows: StateRows) -> None:
        """Add rows.

        Raises
        ------
        StateDiskError
            If the disk is full.
        """
        batch = encode(rows)
        schema, data = batch.schema, batch.serialize()
        offset = self._file.append(memoryview(data))

        read = partial(self._read, offset, data.size, schema)
        self._parts.append(EncodedRows(len(rows), rows.kinds, read))

    def _read(self, offset: int, nbytes: int, schema: pa.Schema) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(offset, nbytes)), schema)

    @property
    def parts(self) -> Sequence[EncodedRows]:
        """The rows, in parts that fit in memory one at a time."""
        return self._parts
