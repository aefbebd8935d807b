"""Messages between workers as bytes: a msgpack header and Arrow IPC bodies; schemas travel once per connection."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from dask_elastic.runtime.transport.packet import Packet
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.state_record import PartialsMoved, StateRecord, TimersDue
from dask_elastic.vocab.window_side import WindowSide

Header = list[Any]
Buffers = list[Any]

RECENT_SCHEMAS = 8
"""Schemas that an encoder compares with, the newest first."""

Message = tuple[Header, Buffers]
"""A message as it travels: its header, and the buffers with its body."""

NO_ROWS = -1
"""In place of a schema's number: there is no body."""

WHOLE_STREAM = -2
"""In place of a schema's number: the body is an IPC stream with its schema, as nested types and dictionaries need."""

MOST_SCHEMAS = 65_536
"""Different schemas that a connection may carry in its life; a peer that sends more is broken."""

UNREADABLE = (
    ArithmeticError, LookupError, TypeError, ValueError, EOFError, OSError, StopIteration, struct.error,
    pa.ArrowException,
)  # fmt: skip
"""What parsing arbitrary bytes can raise."""


class Encoder:
    """Turns record batches into bodies for one connection.

    Parameters
    ----------
    number_of : callable
        Returns the number of a serialised schema, after sending a new schema to the peer.
    """

    def __init__(self, number_of: Callable[[bytes], int]):
        self._number_of = number_of
        # Comparing a schema with some recent ones takes less time than serialising it. Replaced as a whole.
        self._recent: tuple[tuple[pa.Schema, int], ...] = ()

    def rows(self, rows: pa.RecordBatch | None, buffers: Buffers) -> int:
        """Append the body; returns the schema's number, `NO_ROWS` or `WHOLE_STREAM`."""
        if rows is None:
            return NO_ROWS
        number = self._number(rows.schema)
        buffers.append(memoryview(_stream(rows) if number == WHOLE_STREAM else rows.serialize()))
        return number

    def _number(self, schema: pa.Schema) -> int:
        for recent, number in self._recent:
            if recent.equals(schema, check_metadata=True):
                return number
        if any(pa.types.is_dictionary(field.type) or field.type.num_fields for field in schema):
            number = WHOLE_STREAM
        else:
            number = self._number_of(schema.serialize().to_pybytes())
        self._recent = ((schema, number), *self._recent[: RECENT_SCHEMAS - 1])
        return number

    def batch(self, batch: Batch, buffers: Buffers) -> Header:
        """Append rows and hashes; returns the header that `Decoder.batch` takes."""
        number = self.rows(batch.rows, buffers)
        if batch.hashes is not None:
            buffers.append(np.ascontiguousarray(batch.hashes).data.cast("B"))
        header: Header = [number, batch.stamp, batch.hashes is not None, batch.now]
        if batch.record is None and batch.reached is None and not batch.separate and batch.side is None:
            return header
        side = None if batch.side is None else list(batch.side)
        return [*header, batch.reached, batch.separate, side, *(batch.record or ())]


class Decoder:
    """Turns bodies of one connection back into record batches."""

    def __init__(self) -> None:
        self._schemas: list[pa.Schema] = []

    def learn(self, schema: bytes) -> None:
        """Add the next schema of the peer.

        Raises
        ------
        ProtocolError
            If the bytes are not a schema, or there are too many schemas.
        """
        if len(self._schemas) >= MOST_SCHEMAS:
            raise ProtocolError(f"a peer sent more than {MOST_SCHEMAS} schemas")
        try:
            self._schemas.append(pa.ipc.read_schema(pa.py_buffer(schema)))
        except UNREADABLE as error:
            raise ProtocolError(f"{len(schema)} bytes are not a schema: {error}") from error

    def rows(self, number: int, take: Callable[[], Any]) -> pa.RecordBatch | None:
        """Return the rows whose body `take` returns; they are parts of it, not copies."""
        if number == NO_ROWS:
            return None
        body = pa.py_buffer(take())
        if number == WHOLE_STREAM:
            rows = _first_of_stream(body)
        elif 0 <= number < len(self._schemas):
            message = pa.ipc.read_message(body)
            _check_uncompressed(message)
            rows = pa.ipc.read_record_batch(message, self._schemas[number])
        else:
            raise ProtocolError(f"a batch names schema {number}, which the peer has not sent")
        # Checks that every column lies within the body; the offsets of strings are not checked row by row.
        rows.validate()
        return rows

    def batch(self, header: Header, take: Callable[[], Any]) -> Batch:
        """Return the inverse of `Encoder.batch`."""
        number, stamp, hashed, now, *others = header
        reached, separate, side, *fields = others or (None, False, None)
        if side is not None and not (isinstance(side, list) and fits(side, _SIDE)):
            raise ProtocolError(f"a batch has the side {side!r}")
        if fields and not fits(fields, _TIMERS) and not fits(fields, _PARTIALS):
            raise ProtocolError(f"a state record has the fields {fields!r}")
        rows = self.rows(number, take)
        if rows is None or not all(isinstance(one, float | int) for one in (stamp, now, reached or 0)):
            raise ProtocolError("a batch has no rows, or no time")
        hashes = np.frombuffer(take(), dtype=np.uint64) if hashed else None
        if hashes is not None and len(hashes) != rows.num_rows:
            raise ProtocolError(f"a batch of {rows.num_rows} rows has {len(hashes)} hashes")
        record: StateRecord | None = None
        if fields:
            record = PartialsMoved(*fields) if len(fields) == len(_PARTIALS) else TimersDue(*fields)
        kinds = (reached, False, bool(separate), None if side is None else WindowSide(*side))
        return Batch(rows, hashes, stamp, now, None, record, *kinds)


def _first_of_stream(body: pa.Buffer) -> pa.RecordBatch:
    for message in pa.ipc.MessageReader.open_stream(body):
        _check_uncompressed(message)
    with pa.ipc.open_stream(body) as reader:
        return reader.read_next_batch()


_SOFFSET = struct.Struct("<i")
_UOFFSET = struct.Struct("<I")
_VOFFSET = struct.Struct("<H")


def _check_uncompressed(message: pa.ipc.Message) -> None:
    """Refuse a compressed body, which could claim any amount of memory; dask_elastic never writes one.

    Raises
    ------
    ProtocolError
        If the body is compressed.
    """
    if message.type == "schema":
        return
    flat = message.metadata
    # Message, its field `header`; where that is a dictionary, its field `data`; then the record batch's `compression`.
    (table,) = _UOFFSET.unpack_from(flat, 0)
    record = _field(flat, table, 2)
    if message.type == "dictionary" and record is not None:
        record = _field(flat, record, 1)
    if record is None or _field(flat, record, 3) is not None:
        raise ProtocolError("a batch is compressed, or not a batch")


def _field(flat: pa.Buffer, table: int, number: int) -> int | None:
    """Return the position of the value that a field of a flatbuffer table refers to; None if the field is not set."""
    vtable = table - _SOFFSET.unpack_from(flat, table)[0]
    (size,) = _VOFFSET.unpack_from(flat, vtable)
    if size <= 4 + 2 * number:
        return None
    (offset,) = _VOFFSET.unpack_from(flat, vtable + 4 + 2 * number)
    return table + offset + _UOFFSET.unpack_from(flat, table + offset)[0] if offset else None


def _stream(rows: pa.RecordBatch) -> pa.Buffer:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_batch(rows)
    return out.getvalue()


def encode_message(message: m.ToRemote | m.ToHome, encoder: Encoder, buffers: Buffers) -> Header:
    """Return the header of a message between a home and its remote tasks; bodies are appended to `buffers`."""
    match message:
        case m.StartTask(task, shards):
            fields: Header = [task, list(shards)]
        case m.SubBatch(task, number, batch, silent):
            fields = [task, number, encoder.batch(batch, buffers), silent]
        case m.Install(task, shard, state, fresh):
            fields = [task, shard, encoder.rows(state, buffers), fresh]
        case m.Outputs(task, number, deliveries):
            fields = [task, number, [[*d.target, encoder.batch(d.batch, buffers)] for d in deliveries]]
        case m.Flush(task, through, state, token, shard):
            fields = [task, through, encoder.rows(state, buffers), token, shard]
        case m.Label(task, shard, stays):
            fields = [task, shard, stays]
        case m.Done(task, number, busy, waited, counts, costs):
            fields = [task, number, busy, waited, list(counts), list(costs)]
        case m.LabelReturned(task, shard, through, state):
            fields = [task, shard, through, encoder.rows(state, buffers)]
        case m.FlushRequest(task, token, shard):
            fields = [task, token, shard]
        case m.StopTask(task):
            fields = [task]
    return [type(message).__name__, *fields]


_WHOLE = (int,)
_REAL = (int, float)
_TIME = (int, NoneType)
_TIMERS: tuple[tuple[type, ...], ...] = (_TIME, _TIME, (bool,))
_PARTIALS: tuple[tuple[type, ...], ...] = (_WHOLE,)
_SIDE: tuple[tuple[type, ...], ...] = (_WHOLE, (bool,), (bool,))
_FIELDS: dict[str, tuple[tuple[type, ...], ...]] = {
    "StartTask": (_WHOLE, (list,)),
    "StopTask": (_WHOLE,),
    "SubBatch": (_WHOLE, _WHOLE, (list,), (bool,)),
    "Install": (_WHOLE, _WHOLE, _WHOLE, (bool,)),
    "Outputs": (_WHOLE, _WHOLE, (list,)),
    "Flush": (_WHOLE, _WHOLE, _WHOLE, _WHOLE, _WHOLE),
    "Label": (_WHOLE, _WHOLE, (bool,)),
    "Done": (_WHOLE, _WHOLE, _REAL, _REAL, (list,), (list,)),
    "LabelReturned": (_WHOLE, _WHOLE, _WHOLE, _WHOLE),
    "FlushRequest": (_WHOLE, _WHOLE, _WHOLE),
}
"""The fields of each message's header, behind its kind."""


def decode_message(header: Header, decoder: Decoder, take: Callable[[], Any]) -> m.ToRemote | m.ToHome:
    """Return the inverse of `encode_message`.

    Raises
    ------
    ProtocolError
        If the header is not one of a message.
    """
    kind, *fields = header
    expected = _FIELDS.get(kind) if isinstance(kind, str) else None
    if expected is None:
        raise ProtocolError(f"a message of the unknown kind {kind!r}")
    if not fits(fields, expected):
        raise ProtocolError(f"a message {kind!r} has the fields {fields!r}")
    match kind:
        case "StartTask":
            return m.StartTask(fields[0], _integers(kind, fields[1]))
        case "SubBatch":
            return m.SubBatch(fields[0], fields[1], decoder.batch(fields[2], take), fields[3])
        case "Install":
            return m.Install(fields[0], fields[1], decoder.rows(fields[2], take), fields[3])
        case "Outputs":
            deliveries = [Delivery(ExecutorId(c, i), decoder.batch(part, take)) for c, i, part in fields[2]]
            return m.Outputs(fields[0], fields[1], tuple(deliveries))
        case "Flush":
            return m.Flush(fields[0], fields[1], decoder.rows(fields[2], take), *fields[3:])
        case "LabelReturned":
            return m.LabelReturned(fields[0], fields[1], fields[2], decoder.rows(fields[3], take))
        case "Done":
            counts, costs = _integers(kind, fields[4]), _reals(kind, fields[5])
            return m.Done(fields[0], fields[1], fields[2], fields[3], counts, costs)
    made: m.ToRemote | m.ToHome = getattr(m, kind)(*fields)
    return made


def fits(fields: Sequence[Any], expected: tuple[tuple[type, ...], ...]) -> bool:
    """Return whether fields have the expected number and types."""
    return len(fields) == len(expected) and all(map(isinstance, fields, expected))


def _integers(kind: str, numbers: Sequence[Any]) -> tuple[int, ...]:
    if not all(isinstance(number, int) for number in numbers):
        raise ProtocolError(f"a message {kind!r} has the numbers {numbers[:8]!r}, which are not all integers")
    return tuple(numbers)


def _reals(kind: str, numbers: Sequence[Any]) -> tuple[float, ...]:
    if not all(isinstance(number, int | float) for number in numbers):
        raise ProtocolError(f"a message {kind!r} has the numbers {numbers[:8]!r}, which are not all numbers")
    return tuple(map(float, numbers))


def pack(headers: list[tuple[Header, int]], stamp: m.Stamp) -> bytes:
    """Return the first buffer of a packet: its stamp, and each message's header and number of buffers."""
    packed: bytes = msgpack.packb([*stamp, headers], use_bin_type=True)
    return packed


def unpack(packet: Packet) -> tuple[list[tuple[Header, int]], m.Stamp]:
    """Return what `pack` made the first buffer of a packet from; the other buffers are not looked at.

    Raises
    ------
    ProtocolError
        If there is no buffer, or the first one was not made by `pack`.
    """
    if not packet.buffers:
        raise ProtocolError("a packet without headers")
    first = packet.buffers[0]
    try:
        incarnation, sequence, headers = msgpack.unpackb(bytes(first), raw=False, strict_map_key=False)
    except UNREADABLE as error:
        raise ProtocolError(f"{len(first)} bytes are not headers: {error}") from error
    if not fits((incarnation, sequence, headers), (_WHOLE, _WHOLE, (list,))) or not all(map(_is_entry, headers)):
        raise ProtocolError("the first buffer of a packet does not hold headers")
    return headers, m.Stamp(incarnation, sequence)


def messages_of(packet: Packet, headers: list[tuple[Header, int]]) -> Iterator[Message]:
    """Yield the messages of a packet in order.

    Parameters
    ----------
    packet : Packet
        The packet.
    headers : list of (Header, int)
        Its headers, from `unpack`.

    Yields
    ------
    Message
        A header, and the buffers of its message.

    Raises
    ------
    ProtocolError
        Before the first message, if the packet has more or fewer buffers than the headers announce.
    """
    announced = sum(count for _, count in headers)
    if announced != len(packet.buffers) - 1:
        raise ProtocolError(f"a packet has {len(packet.buffers) - 1} buffers, but its headers announce {announced}")
    start = 1
    for header, count in headers:
        yield header, packet.buffers[start : start + count]
        start += count


def _is_entry(entry: Any) -> bool:
    """Return whether this is a header with its number of buffers."""
    return isinstance(entry, list) and fits(entry, ((list,), _WHOLE)) and len(entry[0]) > 0 and entry[1] >= 0
