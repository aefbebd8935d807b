"""The file of one cut of an executor's state: a stream of Arrow record batches with a header."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import Contents, FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.pickled import cannot_load, class_name, versions
from dask_elastic.checkpoint.shard_set import from_text, to_text
from dask_elastic.state.codec import EncodedRows, StateRows
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

FORMAT = 1
"""The version of the format that this version of dask_elastic writes; it reads all up to it."""
BATCH_BYTES = 4 << 20
"""The approximate bytes of a record batch, which bounds the memory that a reader needs at a time."""

_HEADER = b"dask_elastic.state_file"
_HEADER_BYTES = 1 << 18
"""Bytes of a file in which its header is looked for."""


@dataclass(frozen=True)
class StateHeader:
    """What a file of state contains.

    Parameters
    ----------
    operator : str
        The operator.
    executor : int
        The executor, from 0.
    executors, shards : int
        The number of executors, and of the shards of each.
    number : int
        The number of the checkpoint for which it was written.
    full : frozenset of int
        The shards of which it contains the whole state; of all others it contains changes.
    input_schema : Schema or None
        The schema of the executor's input, which is needed to read the state as values.
    classes : tuple of str
        The classes of the Python objects in the state; `write` finds them.
    versions : str
        The versions with which these were pickled.
    """

    operator: str
    executor: int
    executors: int
    shards: int
    number: int
    full: frozenset[int]
    input_schema: pa.Schema | None = None
    classes: tuple[str, ...] = ()
    versions: str = field(default_factory=versions)

    def cannot_load(self, error: Exception) -> CheckpointError:
        """Return the error for state whose objects cannot be loaded, which names the operator and the classes."""
        return cannot_load(f"the state of operator {self.operator!r}", ", ".join(self.classes), self.versions, error)


@dataclass(frozen=True)
class StateFile:
    """A file that was read and verified.

    Parameters
    ----------
    header : StateHeader
        What it contains.
    contents : NativeFile
        The whole file.
    """

    header: StateHeader
    contents: pa.NativeFile = field(repr=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches for `KeyedStore.install`.

        Yields
        ------
        RecordBatch
            Encoded state; tombstones are rows that are marked as deleted.
        """
        for reader in _streams(self.contents):
            yield from reader


def path_of(operator_number: int, header: StateHeader, generation: int) -> str:
    """Return where the file of a cut is written.

    Parameters
    ----------
    operator_number : int
        The position of the operator in the topology: names may have characters that a path cannot have.
    header : StateHeader
        The cut.
    generation : int
        The generation of the job, so that executors of an earlier one never write the same file.

    Returns
    -------
    str
        The path within the job's folder.

    Examples
    --------
    >>> path_of(2, StateHeader("planes", 5, 8, 256, 17, frozenset()), generation=3)
    'state/0000000017/2-5-g3.arrows'
    """
    return f"state/{header.number:010d}/{operator_number}-{header.executor}-g{generation}.arrows"


def write(
    folder: CheckpointFolder,
    path: str,
    header: StateHeader,
    parts: Sequence[StateRows | EncodedRows],
    compression: str | None = None,
) -> FileRef:
    """Write the file of a cut.

    Parameters
    ----------
    folder : CheckpointFolder
        Where to write.
    path : str
        The path there, see `path_of`.
    header : StateHeader
        What it contains.
    parts : sequence of StateRows or EncodedRows
        The rows, in any order: the whole state of the shards in `header.full`, the changes of the others. At least one
        part, which may have no rows.
    compression : str, optional
        "lz4" or "zstd". By default none: writing is several times as fast.

    Returns
    -------
    FileRef
        The file.

    Raises
    ------
    CheckpointError
        When it cannot be written.
    """
    metadata = _metadata(header, parts)
    rows = sum(len(part) for part in parts)
    return folder.write(path, _encoded(parts, metadata, compression), rows)


def read(folder: CheckpointFolder, ref: FileRef) -> StateFile:
    """Read and verify a file of state.

    Parameters
    ----------
    folder : CheckpointFolder
        Where it is.
    ref : FileRef
        The file.

    Returns
    -------
    StateFile
        Header and rows.

    Raises
    ------
    CheckpointCorrupt
        When it is missing or damaged, or no file of state.
    CheckpointError
        When a newer version of dask_elastic wrote it.
    """
    contents = folder.open(ref)
    where = folder.where(ref.path)
    try:
        schema = pa.ipc.open_stream(contents).schema
    except (pa.ArrowException, OSError) as error:
        raise _no_state(where, error) from error
    return StateFile(_checked_header(schema, where), contents)


def read_header(folder: CheckpointFolder, ref: FileRef) -> StateHeader:
    """Read what a file of state contains, without verifying the file.

    Parameters
    ----------
    folder, ref
        As for `read`.

    Returns
    -------
    StateHeader
        The header.

    Raises
    ------
    CheckpointCorrupt, CheckpointError
        As for `read`.
    """
    where = folder.where(ref.path)
    try:
        schema = pa.ipc.read_schema(folder.read_start(ref, _HEADER_BYTES))
    except (pa.ArrowException, OSError) as error:
        if ref.nbytes > _HEADER_BYTES:
            # The header may be larger.
            return read(folder, ref).header
        raise _no_state(where, error) from error
    return _checked_header(schema, where)


def header_of(batch: pa.RecordBatch) -> StateHeader:
    """Return the header of the file from which a batch was read."""
    return _header(json.loads(batch.schema.metadata[_HEADER]))


def _checked_header(schema: pa.Schema, where: str) -> StateHeader:
    try:
        described = json.loads((schema.metadata or {})[_HEADER])
        newer = described["format"] > FORMAT
        header = None if newer else _header(described)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise _no_state(where, error) from error
    if header is None:
        raise CheckpointError(
            f"{where} has format {described['format']}, which a newer version of dask_elastic wrote; this version "
            f"reads formats up to {FORMAT}. Upgrade dask_elastic on the client, the scheduler and all workers."
        )
    return header


def _no_state(where: str, error: Exception) -> CheckpointCorrupt:
    return CheckpointCorrupt(where, "a file of state", f"{type(error).__name__}: {error}")


def _encoded(
    parts: Sequence[StateRows | EncodedRows], metadata: dict[bytes, bytes], compression: str | None
) -> Iterator[Contents]:
    """Yield the file: one Arrow stream, and a further one wherever the types of object columns differ."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    pending = _Pending()
    writer = schema = None
    for batch in (batch for part in parts for batch in part.batches()):
        batch = batch.replace_schema_metadata({**(batch.schema.metadata or {}), **metadata})
        if writer is None or not batch.schema.equals(schema):
            if writer is not None:
                writer.close()
            schema = batch.schema
            writer = pa.ipc.new_stream(pa.PythonFile(pending, mode="w"), schema, options=options)
        most = _rows_per_batch(batch)
        for start in range(0, batch.num_rows, most):
            writer.write_batch(batch.slice(start, most))
            yield from pending.drain()
    if writer is not None:
        writer.close()
    yield from pending.drain()


def _rows_per_batch(batch: pa.RecordBatch) -> int:
    rows: int = batch.num_rows * BATCH_BYTES // max(BATCH_BYTES, batch.nbytes)
    return max(1, rows)


class _Pending:
    """The part of a file that Arrow has written and the storage has not taken."""

    closed = False

    def __init__(self) -> None:
        self._buffers: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._buffers.append(data)
        return len(data)

    def flush(self) -> None:
        """Nothing to do: the storage flushes."""

    def drain(self) -> list[bytes]:
        """Return what was written since the last call."""
        drained, self._buffers = self._buffers, []
        return drained


def _streams(contents: pa.NativeFile) -> Iterator[Any]:
    contents.seek(0)
    while contents.tell() < contents.size():
        yield pa.ipc.open_stream(contents)


def _metadata(header: StateHeader, parts: Sequence[StateRows | EncodedRows]) -> dict[bytes, bytes]:
    schema = header.input_schema
    described = {
        "format": FORMAT,
        "operator": header.operator,
        "executor": header.executor,
        "executors": header.executors,
        "shards": header.shards,
        "number": header.number,
        "full": to_text(header.full),
        "input_schema": None if schema is None else base64.b64encode(schema.serialize()).decode(),
        "classes": sorted(_classes(parts)),
        "versions": header.versions,
    }
    return {_HEADER: json.dumps(described).encode()}


def _header(described: dict[str, Any]) -> StateHeader:
    schema = described["input_schema"]
    return StateHeader(
        described["operator"],
        described["executor"],
        described["executors"],
        described["shards"],
        described["number"],
        from_text(described["full"]),
        None if schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))),
        tuple(described["classes"]),
        described["versions"],
    )


def _classes(parts: Sequence[StateRows | EncodedRows]) -> set[str]:
    """Return the names of the classes of all Python objects in the state."""
    kinds = {kind for part in parts for kind in part.kinds}
    return {class_name(kind) for kind in kinds - {type(None)}}
