"""The storage of a store in files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.codec import EncodedRows
from dask_elastic.state.disk.deferred_cut import DeferredCut
from dask_elastic.state.disk.disk_slots import DiskSlots
from dask_elastic.state.disk.key_file import KeyFile
from dask_elastic.state.disk.mapped_index import MappedIndex
from dask_elastic.state.disk.unnamed_files import UnnamedFiles
from dask_elastic.state.key_table import KeyTable
from dask_elastic.state.slots import SlotArrays
from dask_elastic.state.storage import CutSource, Storage
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.vocab.lock import MakeLock

_CACHED_KEYS = 1 << 17


class DiskStorage(Storage):
    """Keeps what a store holds in files.

    Parameters
    ----------
    files : UnnamedFiles
        Makes the files; several stores may share it.

    Examples
    --------
    >>> import tempfile
    >>> storage = DiskStorage(UnnamedFiles(tempfile.gettempdir()))
    >>> storage.on_disk
    True
    """

    on_disk = True
    cached_keys = _CACHED_KEYS

    def __init__(self, files: UnnamedFiles) -> None:
        super().__init__()
        self.files = files

    def slots(self, fields: Sequence[Field], make_lock: MakeLock, shards: int) -> DiskSlots:
        """Return empty slots."""
        return DiskSlots(fields, make_lock, shards, self.files)

    def keys(self, schema: pa.Schema) -> KeyFile:
        """Return empty key columns."""
        return KeyFile(schema, self.files)

    def table(self) -> KeyTable:
        """Return an empty table of keys."""
        return KeyTable(lambda: MappedIndex(self.files))

    def cut(self, store: CutSource, in_full: npt.NDArray[np.bool_]) -> Sequence[EncodedRows]:
        """Return what a cut contains; it is copied while it is read, and rows that change before are kept."""
        cut = DeferredCut(store, self.files, in_full)
        store.slots.watch(cut)
        return [cut.rows()]

    def is_copied(self, slots: SlotArrays) -> bool:
        """Return whether a cut of the slots is still being copied."""
        return isinstance(slots, DiskSlots) and slots.cut is not None
