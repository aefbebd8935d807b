"""Encoded state of several computes as one record batch, for moves and flushes."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from dask_elastic.vocab.listed_arrays import listed_array

FIRST = ""
"""Stands for the compute that gives the component its name."""

_SCHEMA = pa.schema(
    {"operator": pa.string(), "state": pa.large_binary(), "input": pa.large_binary()},
    metadata={b"dask_elastic.packed": b"1"},
)


def pack(parts: Mapping[str, tuple[pa.RecordBatch | None, pa.Schema | None]]) -> pa.RecordBatch | None:
    """Pack the encoded state of computes, without those that have none.

    Parameters
    ----------
    parts : mapping of str to (RecordBatch or None, Schema or None)
        By compute: what `KeyedStore.extract` returned, and the schema of its input if it is not known elsewhere.

    Returns
    -------
    RecordBatch or None
        One row for each compute; None if there is none.

    Examples
    --------
    >>> state = pa.record_batch({"n": [1, 2]})
    >>> unpack(pack({"planes": (state, None), "worst": (None, None)}))["planes"][0].equals(state)
    True
    """
    rows = [(name, state, schema) for name, (state, schema) in parts.items() if state is not None]
    if not rows:
        return None
    columns = [
        listed_array([name for name, _, _ in rows], pa.string()),
        listed_array([_written(state) for _, state, _ in rows], pa.large_binary()),
        listed_array(
            [None if schema is None else schema.serialize().to_pybytes() for _, _, schema in rows], pa.large_binary()
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def is_packed(batch: pa.RecordBatch) -> bool:
    """Return whether `pack` made a batch.

    Parameters
    ----------
    batch : RecordBatch
        The batch.

    Returns
    -------
    bool
        False for the state of a single compute.
    """
    return bool(batch.schema.equals(_SCHEMA, check_metadata=True))


def unpack(batch: pa.RecordBatch) -> dict[str, tuple[pa.RecordBatch, pa.Schema | None]]:
    """Return the parts of a packed batch.

    Parameters
    ----------
    batch : RecordBatch
        What `pack` returned.

    Returns
    -------
    dict of str to (RecordBatch, Schema or None)
        The parts, by compute.
    """
    found = {}
    for name, state, schema in zip(*batch.columns, strict=True):
        with pa.ipc.open_stream(state.as_buffer()) as reader:
            known = pa.ipc.read_schema(schema.as_buffer()) if schema.is_valid else None
            found[name.as_py()] = (reader.read_next_batch(), known)
    return found


def _written(state: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, state.schema) as writer:
        writer.write_batch(state)
    written: bytes = sink.getvalue().to_pybytes()
    return written
