"""Rows that a sink has prepared and not committed, in the folder of the job's checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import Contents, FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import newest_generation
from dask_elastic.vocab.errors import CheckpointCorrupt

_FOLDER = "staged"


class StagedRows:
    """Keeps rows of sinks for which `prepare` returns a reference, until they are committed.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.

    Examples
    --------
    >>> staged = StagedRows(CheckpointFolder("memory://staged"))
    >>> file = staged.write("out-0-g1-c7-0", [pa.record_batch({"n": [1, 2]})])
    >>> file.path, file.rows, [rows.num_rows for rows in staged.read(file) or ()]
    ('staged/out-0-g1-c7-0.arrows', 2, [2])
    >>> staged.delete(file)
    >>> staged.read(file) is None
    True
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    def write(self, name: str, batches: Sequence[pa.RecordBatch]) -> FileRef:
        """Write rows to a new file, which is durable then.

        Parameters
        ----------
        name : str
            The name of the file, which no other writer of the job uses, of any generation.
        batches : sequence of RecordBatch
            At least one, all of one schema.

        Returns
        -------
        FileRef
            What `read` and `delete` take: small and picklable.

        Raises
        ------
        CheckpointError
            When it cannot be written.
        """
        rows = sum(batch.num_rows for batch in batches)
        return self._folder.write(f"{_FOLDER}/{name}.arrows", _encoded(batches), rows)

    def read(self, file: FileRef) -> Iterator[pa.RecordBatch] | None:
        """Return the rows of a file; None if it was deleted.

        Raises
        ------
        CheckpointCorrupt
            When it is damaged.
        """
        try:
            contents = self._folder.read_unchecked(file.path)
        except FileNotFoundError:
            return None
        where = self._folder.where(file.path)
        file.check(where, contents)
        try:
            batches: list[pa.RecordBatch] = [*pa.ipc.open_stream(contents)]
            return iter(batches)
        except (pa.ArrowException, OSError) as error:
            raise CheckpointCorrupt(where, "a stream of rows", f"{type(error).__name__}: {error}") from error

    def delete(self, file: FileRef) -> None:
        """Delete a file; one that does not exist is no error."""
        self._folder.delete(file.path)

    def sweep(self, prefix: str, below: int) -> None:
        """Delete files that no writer commits any more.

        Parameters
        ----------
        prefix : str
            What their names begin with; the generation follows.
        below : int
            Files of this generation and of later ones stay.
        """
        self._sweep(rf"{re.escape(prefix)}(\d+)\D", lambda generation: generation < below)

    def sweep_unprepared(self, sink: str, below: int, checkpoint: int) -> None:
        """Delete files of any instance of a sink that belong to an incomplete checkpoint.

        Parameters
        ----------
        sink : str
            What their names begin with; ``-``, the instance, ``-g``, the generation, ``-c`` and the newest checkpoint
            that the instance had prepared follow.
        below : int
            Files of this generation and of later ones stay.
        checkpoint : int
            The newest complete checkpoint: files with a lower number stay, since its rows may not be committed yet.
        """
        pattern = rf"{re.escape(sink)}-\d+-g(\d+)-c(\d+)\D"
        self._sweep(pattern, lambda generation, prepared: generation < below and prepared >= checkpoint)

    def newest_generation(self) -> int:
        """Return the newest generation of the job, 0 for none; it is reserved before anything of it starts."""
        return newest_generation(self._folder)

    def _sweep(self, pattern: str, is_left: Callable[..., bool]) -> None:
        for name in self._folder.sizes(_FOLDER):
            # What a killed writer left has a hidden name.
            found = re.match(rf"\.?{pattern}", name)
            if found and is_left(*map(int, found.groups())):
                self._folder.delete(f"{_FOLDER}/{name}")


def _encoded(batches: Sequence[pa.RecordBatch]) -> Iterator[Contents]:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    yield memoryview(stream.getvalue())
