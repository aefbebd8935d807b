"""One entry of a spool: a batch that a source has accepted, or the end of its input."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from dask_elastic.checkpoint.file_ref import Contents
from dask_elastic.checkpoint.spool.frames import Frame, Kind, encoded

_FIXED = struct.Struct("<QQddH6x")
_PAD = 8


@dataclass(frozen=True)
class Entry:
    """A batch that a source has accepted.

    Parameters
    ----------
    number : int
        The place in the spool, from 1.
    sender : str
        Who sent it; empty if the sender does not repeat batches.
    sequence : int
        The sender's number for it.
    rows : RecordBatch or None
        The rows; None marks the end of the source's input.
    due : float or None
        When the rows were due, as their sender has said.
    arrived : float
        When they arrived, seconds since the epoch.
    """

    number: int
    sender: str
    sequence: int
    rows: pa.RecordBatch | None
    due: float | None = None
    arrived: float = 0.0


class EntryEncoder:
    """Turns the entries of one segment into frames; a schema is written once in a row."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def frames(self, entry: Entry) -> Iterator[Contents]:
        """Yield the frames of an entry as buffers."""
        sender = entry.sender.encode()
        due = math.nan if entry.due is None else entry.due
        fixed = _FIXED.pack(entry.number, entry.sequence, due, entry.arrived, len(sender))
        head: list[Contents] = [fixed, sender, bytes(-len(sender) % _PAD)]
        rows = entry.rows
        if rows is None:
            yield from encoded(Kind.END, head)
        elif _needs_stream(rows.schema):
            yield from encoded(Kind.STREAM, [*head, _stream(rows)])
        else:
            if self._schema is None or not rows.schema.equals(self._schema, check_metadata=True):
                self._schema = rows.schema
                yield from encoded(Kind.SCHEMA, [rows.schema.serialize()])
            yield from encoded(Kind.ROWS, [*head, rows.serialize()])


class EntryDecoder:
    """Turns the frames of one segment back into entries, whose rows are parts of the segment, not copies."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def entry(self, frame: Frame) -> Entry | None:
        """Return the entry of a frame; None for a frame of another kind."""
        payload = frame.payload
        if frame.kind is Kind.SCHEMA:
            self._schema = pa.ipc.read_schema(pa.py_buffer(payload))
        if frame.kind not in (Kind.ROWS, Kind.STREAM, Kind.END):
            return None
        number, sequence, due, arrived, length = _FIXED.unpack_from(payload)
        sender = bytes(payload[_FIXED.size : _FIXED.size + length]).decode()
        body = pa.py_buffer(payload[_FIXED.size + length + -length % _PAD :])
        rows = None
        if frame.kind is Kind.ROWS:
            rows = pa.ipc.read_record_batch(body, self._schema)
        elif frame.kind is Kind.STREAM:
            with pa.ipc.open_stream(body) as reader:
                rows = reader.read_next_batch()
        return Entry(number, sender, sequence, rows, None if math.isnan(due) else due, arrived)


def _needs_stream(schema: pa.Schema) -> bool:
    """Return whether a single message does not hold the rows: dictionaries are messages of their own."""
    return any(pa.types.is_dictionary(field.type) or field.type.num_fields for field in schema)


def _stream(rows: pa.RecordBatch) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_batch(rows)
    return out.getvalue()
