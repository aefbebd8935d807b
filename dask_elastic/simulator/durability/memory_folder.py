"""A folder of checkpoints in memory: the production code, without a file system."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import Contents, FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.vocab.errors import CheckpointError


class MemoryFolder(CheckpointFolder):
    """The folder of one simulated job; each operation is atomic.

    Examples
    --------
    >>> folder = MemoryFolder()
    >>> folder.claim("generations/000001", "scheduler"), folder.claim("generations/000001")
    (True, False)
    >>> folder.sizes("generations"), folder.folders("")
    ({'000001': 9}, ['generations'])
    """

    def __init__(self) -> None:
        self.url = self.shown = "simulated"
        self._contents: dict[str, dict[str, bytes]] = {}

    def write(self, path: str, buffers: Iterable[Contents], rows: int = 0) -> FileRef:
        """Write a new file."""
        parent, _, name = path.rpartition("/")
        contents = b"".join(bytes(buffer) for buffer in buffers)
        if name in (files := self._contents.setdefault(parent, {})):
            raise CheckpointError(f"{self.where(path)} exists already")
        files[name] = contents
        return FileRef(path, len(contents), "simulated", rows)

    def claim(self, path: str, owner: str = "") -> bool:
        """Create a small file; return False if it exists already."""
        parent, _, name = path.rpartition("/")
        files = self._contents.setdefault(parent, {})
        return files.setdefault(name, owner.encode()) is not None if name not in files else False

    def read_unchecked(self, path: str, nbytes: int = 0) -> pa.Buffer:
        """Return the contents of a file."""
        parent, _, name = path.rpartition("/")
        try:
            return pa.py_buffer(self._contents[parent][name])
        except KeyError:
            raise FileNotFoundError(path) from None

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size of each file directly in a folder."""
        return {name: len(contents) for name, contents in self._contents.get(folder, {}).items()}

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders directly in a folder."""
        parents = (parent.split("/") for parent in self._contents)
        depth = folder.count("/") + 1 if folder else 0
        return sorted({parts[depth] for parts in parents if "/".join(parts[:depth]) == folder and len(parts) > depth})

    def make_durable(self, folder: str) -> None:
        """Do nothing: what was written stays."""

    def delete(self, path: str) -> None:
        """Delete a file."""
        parent, _, name = path.rpartition("/")
        self._contents.get(parent, {}).pop(name, None)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder if it is empty."""
        if not self._contents.get(folder, True):
            del self._contents[folder]
