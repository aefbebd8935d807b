"""Messages between workers as bytes: a msgpack header and Arrow IPC bodies; schemas travel once per connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId

Header = list[Any]
Buffers = list[Any]

NO_ROWS = -1
WHOLE_STREAM = -2


class Encoder:
    """Turns record batches into bodies for one connection.

    Parameters
    ----------
    number_of : callable
        The number of a serialised schema; it tells the peer of a new one before it returns.
    """

    def __init__(self, number_of: Callable[[bytes], int]):
        self._number_of = number_of

    def rows(self, rows: pa.RecordBatch | None, buffers: Buffers) -> int:
        """Append the body; returns the schema's number, or a sign for none."""
        if rows is None:
            return NO_ROWS
        if any(pa.types.is_dictionary(field.type) or field.type.num_fields for field in rows.schema):
            buffers.append(memoryview(_stream(rows)))
            return WHOLE_STREAM
        number = self._number_of(rows.schema.serialize().to_pybytes())
        buffers.append(memoryview(rows.serialize()))
        return number

    def batch(self, batch: Batch, buffers: Buffers) -> Header:
        """Append rows and hashes; returns the header that `Decoder.batch` takes."""
        number = self.rows(batch.rows, buffers)
        if batch.hashes is not None:
            buffers.append(np.ascontiguousarray(batch.hashes).data.cast("B"))
        return [number, batch.stamp, batch.hashes is not None, batch.now]


class Decoder:
    """Turns bodies of one connection back into record batches."""

    def __init__(self) -> None:
        self._schemas: list[pa.Schema] = []

    def learn(self, schema: bytes) -> None:
        """Take the next schema."""
        self._schemas.append(pa.ipc.read_schema(pa.py_buffer(schema)))

    def rows(self, number: int, take: Callable[[], Any]) -> pa.RecordBatch | None:
        """Return the rows whose body `take` returns."""
        if number == NO_ROWS:
            return None
        body = pa.py_buffer(take())
        if number == WHOLE_STREAM:
            with pa.ipc.open_stream(body) as reader:
                return reader.read_next_batch()
        if not 0 <= number < len(self._schemas):
            raise ProtocolError(f"a batch names schema {number}, of which the peer has not told")
        return pa.ipc.read_record_batch(body, self._schemas[number])

    def batch(self, header: Header, take: Callable[[], Any]) -> Batch:
        """Return the inverse of `Encoder.batch`."""
        number, stamp, hashed, now = header
        rows = self.rows(number, take)
        hashes = np.frombuffer(take(), dtype=np.uint64) if hashed else None
        return Batch(rows, hashes, stamp, now)


def _stream(rows: pa.RecordBatch) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_batch(rows)
    return out.getvalue()


def encode_message(message: m.ToRemote | m.ToHome, encoder: Encoder, buffers: Buffers) -> Header:
    """Header of a message between a home and its remote tasks; bodies are appended to `buffers`."""
    match message:
        case m.StartTask(task, shards):
            fields: Header = [task, list(shards)]
        case m.SubBatch(task, number, batch):
            fields = [task, number, encoder.batch(batch, buffers)]
        case m.Install(task, shard, state):
            fields = [task, shard, encoder.rows(state, buffers)]
        case m.Outputs(task, number, deliveries):
            fields = [task, number, [[*d.target, encoder.batch(d.batch, buffers)] for d in deliveries]]
        case m.Flush(task, through, state, token, shard):
            fields = [task, through, encoder.rows(state, buffers), token, shard]
        case m.Label(task, shard, stays):
            fields = [task, shard, stays]
        case m.Done(task, number, busy, waited):
            fields = [task, number, busy, waited]
        case m.LabelReturned(task, shard):
            fields = [task, shard]
        case m.FlushRequest(task, token, shard):
            fields = [task, token, shard]
        case m.StopTask(task):
            fields = [task]
    return [type(message).__name__, *fields]


def decode_message(header: Header, decoder: Decoder, take: Callable[[], Any]) -> m.ToRemote | m.ToHome:
    """Return the inverse of `encode_message`."""
    kind, *fields = header
    match kind:
        case "StartTask":
            return m.StartTask(fields[0], tuple(fields[1]))
        case "SubBatch":
            return m.SubBatch(fields[0], fields[1], decoder.batch(fields[2], take))
        case "Install":
            return m.Install(fields[0], fields[1], decoder.rows(fields[2], take))
        case "Outputs":
            deliveries = [Delivery(ExecutorId(c, i), decoder.batch(part, take)) for c, i, part in fields[2]]
            return m.Outputs(fields[0], fields[1], tuple(deliveries))
        case "Flush":
            return m.Flush(fields[0], fields[1], decoder.rows(fields[2], take), *fields[3:])
        case "Label" | "Done" | "LabelReturned" | "FlushRequest" | "StopTask":
            made: m.ToRemote | m.ToHome = getattr(m, kind)(*fields)
            return made
    raise ProtocolError(f"a message of the unknown kind {kind!r}")


def pack(headers: list[tuple[Header, int]]) -> bytes:
    """Return the first buffer of a packet: each message's header and how many buffers are its own."""
    packed: bytes = msgpack.packb(headers, use_bin_type=True)
    return packed


def unpack(first: Any) -> list[tuple[Header, int]]:
    """Return the inverse of `pack`."""
    headers: list[tuple[Header, int]] = msgpack.unpackb(bytes(first), raw=False, strict_map_key=False)
    return headers
