"""Messages between workers round-trip through bytes, and invalid bytes raise ProtocolError."""

from __future__ import annotations

import gc
import logging
from random import Random
from types import SimpleNamespace

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from distributed.protocol import deserialize, serialize
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dask_elastic.runtime.transport.dispatch import _FIELDS, Dispatch
from dask_elastic.runtime.transport.packet import PREFIX, Packet
from dask_elastic.runtime.transport.wire import Decoder, Encoder, decode_message, encode_message, pack, unpack
from dask_elastic.vocab import messages as m
from dask_elastic.vocab.batch import Batch, Delivery
from dask_elastic.vocab.errors import ProtocolError, SchemaMismatch
from dask_elastic.vocab.identity import ExecutorId

FLAT = pa.record_batch({"k": [1, 2, None], "word": ["a", None, "ä"]})
WORDS = pa.record_batch({"k": pa.array(["a", "b", "a"]).dictionary_encode()})
NESTED = pa.record_batch({"k": [[1, 2], [], None], "s": [{"a": 1}, None, {"a": 2}]})
SLICED = pa.record_batch({"k": range(100), "word": [str(n) for n in range(100)]}).slice(40, 7)
EMPTY = FLAT.slice(0, 0)
HASHES = np.array([1, 2**64 - 1, 3], dtype=np.uint64)
TARGET = ExecutorId("c", 1)

MESSAGES = [
    m.StartTask(1, (0, 255)),
    m.StartTask(2),
    m.StopTask(3),
    m.SubBatch(1, 2, Batch(FLAT, HASHES, 1.5)),
    m.SubBatch(1, 2, Batch(WORDS, HASHES, 1.5)),
    m.SubBatch(1, 2, Batch(NESTED, None, 0.0), True),
    m.SubBatch(1, 2, Batch(SLICED, np.arange(7, dtype=np.uint64), 0.0)),
    m.SubBatch(1, 2, Batch(EMPTY, HASHES[:0], 0.0), True),
    m.Label(1, 2, True),
    m.Label(1, 2, False),
    m.Install(1, 2, None),
    m.Install(1, 2, FLAT),
    m.Install(1, 2, None, fresh=True),
    m.FlushRequest(1, -1),
    m.Outputs(1, 2, ()),
    m.Outputs(1, 2, (Delivery(TARGET, Batch(FLAT, None, 0.5)), Delivery(TARGET, Batch(WORDS, HASHES, 0.5)))),
    m.Done(1, 2, 0.25),
    m.Done(1, 2, 0.25, 0.5, (3, 0, 1, 0, 0), (3.0, 1.0, 0.25)),
    m.Flush(1, -1, None, 7),
    m.Flush(1, 5, NESTED, -1),
    m.LabelReturned(1, 2, 7, None),
    m.LabelReturned(1, 2, -1, FLAT),
]


class Connection:
    """Encoder and decoder of one connection, without workers."""

    def __init__(self):
        self.schemas = []
        self.encoder = Encoder(self.number_of)
        self.decoder = Decoder()

    def number_of(self, schema):
        """Return the number of a schema; the decoder learns a new one."""
        if schema not in self.schemas:
            self.schemas.append(schema)
            self.decoder.learn(schema)
        return self.schemas.index(schema)

    def carry(self, message):
        """Encode, pack, unpack, decode."""
        buffers = []
        header = encode_message(message, self.encoder, buffers)
        [(arrived, count)], stamp = unpack(Packet([pack([(header, len(buffers))], m.Stamp(3, 7))]))
        assert stamp == m.Stamp(3, 7)
        assert count == len(buffers)
        parts = iter([bytes(part) for part in buffers])
        made = decode_message(arrived, self.decoder, lambda: next(parts))
        assert next(parts, None) is None
        return made


def same(one, other):
    """Whether two messages, or parts of them, are the same."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other) and one.dtype == other.dtype
    if isinstance(one, pa.RecordBatch):
        return one.equals(other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__slots__") and type(one) is type(other):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__slots__)
    return one == other


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_round_trips_through_the_wire(message):
    connection = Connection()
    for _ in range(2):
        assert same(connection.carry(message), message)


def test_message_round_trip_covers_every_message_class():
    kinds = {*m.ToRemote.__args__, *m.ToHome.__args__}
    assert {type(message) for message in MESSAGES} == kinds


def test_schema_is_sent_once_and_slices_send_only_their_rows():
    connection = Connection()
    big = pa.record_batch({"k": np.arange(100_000)})
    for start in range(3):
        buffers = []
        encode_message(m.SubBatch(0, 0, Batch(big.slice(start, 10), None, 0.0)), connection.encoder, buffers)
        assert sum(len(part) for part in buffers) < 1_000
    assert len(connection.schemas) == 1


columns = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=4, max_size=4).map(
        lambda v: pa.array(v, pa.int64())
    ),
    st.lists(st.one_of(st.none(), st.text(max_size=5)), min_size=4, max_size=4).map(lambda v: pa.array(v, pa.string())),
    st.lists(st.floats(allow_nan=False), min_size=4, max_size=4).map(pa.array),
    st.lists(st.sampled_from("abc"), min_size=4, max_size=4).map(lambda v: pa.array(v).dictionary_encode()),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(columns, min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_batches_of_many_schemas_round_trip_on_one_connection(batches, data):
    connection = Connection()
    for arrays in batches:
        rows = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
        start = data.draw(st.integers(0, 4))
        rows = rows.slice(start, data.draw(st.integers(0, 4 - start)))
        message = m.SubBatch(0, 0, Batch(rows, np.arange(rows.num_rows, dtype=np.uint64), 1.0))
        assert same(connection.carry(message), message)


def test_unknown_kinds_and_schemas_are_refused():
    with pytest.raises(ProtocolError, match="unknown kind 'Gossip'"):
        decode_message(["Gossip", 1], Decoder(), bytes)
    with pytest.raises(ProtocolError, match="names schema 3"):
        Decoder().rows(3, lambda: b"")


def test_packet_round_trips_through_dask_serialization():
    packet = Packet([b"head", memoryview(b"body"), b""])
    header, frames = serialize(packet)
    assert [bytes(frame) for frame in deserialize(header, frames).buffers] == [b"head", b"body", b""]


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_packet_frames_round_trip(buffers):
    sent = b"".join(bytes(frame) for frame in Packet(buffers).to_frames())
    count, nbytes = Packet.body_bytes(sent[: PREFIX.size])
    assert nbytes == len(sent) - PREFIX.size
    found = Packet.from_body(count, memoryview(sent[PREFIX.size :])).buffers
    assert [bytes(buffer) for buffer in found] == buffers


@given(st.lists(st.binary(max_size=10), min_size=1, max_size=3), st.integers(0, 2**64 - 1))
def test_packet_with_inconsistent_lengths_is_refused(buffers, length):
    sent = b"".join(bytes(frame) for frame in Packet(buffers).to_frames())
    body = bytearray(sent[PREFIX.size :])
    filled = -(-len(buffers[0]) // 8) * 8
    assume(-(-length // 8) * 8 != filled)
    body[:8] = length.to_bytes(8, "little")
    with pytest.raises(ProtocolError, match="claims to have buffers"):
        Packet.from_body(len(buffers), memoryview(body))


def test_bytes_without_packet_prefix_are_refused():
    with pytest.raises(ProtocolError, match="not the beginning of a packet"):
        Packet.body_bytes(b"GET / HTTP/1.1\r\n"[: PREFIX.size])


class JobPart:
    """Records the calls of a dispatch."""

    def __init__(self):
        self.ended = False
        self.refused = 0
        self.spec = SimpleNamespace(generation=3)
        self.exchange = self
        self.taken = []
        self.errors = []

    def input_ended(self, target, origin, version):
        """Note the call."""
        self.taken.append((target, origin, version))

    def fail(self, error):
        """Note the error."""
        self.errors.append(error)


@pytest.fixture
def job_part():
    return JobPart()


@pytest.fixture
def ingress(job_part, caplog):
    caplog.set_level(logging.CRITICAL)
    return Dispatch({"job": job_part}, "peer")


def end(job="job", generation=3):
    """Return the header of an end-of-input message."""
    return ["end", [job, generation], "c", 0, "s", 1, 0]


FIRST = m.Stamp(0, 0)


def packed(*headers, sequence=0, incarnation=0):
    """A packet of messages without bodies."""
    return Packet([pack([(header, 0) for header in headers], m.Stamp(incarnation, sequence))])


def test_dispatch_delivers_messages_in_order(ingress, job_part):
    ingress.handle(packed(end(), end()))
    assert job_part.taken == [(ExecutorId("c", 0), ExecutorId("s", 1), 0)] * 2
    assert job_part.errors == []


def test_messages_of_other_jobs_and_generations_are_refused_and_counted(ingress, job_part):
    ingress.handle(packed(end(job="other"), end(generation=2), ["beat"]))
    assert job_part.taken == []
    assert job_part.errors == []
    assert (ingress.refused, job_part.refused) == (1, 1)


def test_duplicate_packet_is_refused_and_counted(ingress, job_part):
    for sequence in (0, 0, 1, 0):
        ingress.handle(packed(end(), sequence=sequence))
    assert len(job_part.taken) == 2
    assert ingress.refused == 2


WATERMARK = ["watermark", ["job", 3], "c", 0, "s", 1, None, True, 4]

STALE = {
    "batch": [["schema"], ["batch", ["job", 3], "c", 0, "s", 1, 8, [0, 0.5, True, 0.0]]],
    "credit": [["credit", ["job", 3], "c", 0, "s", 1, 77, True, False]],
    "end": [end()],
    "watermark": [WATERMARK],
    "barrier": [["barrier", ["job", 3], "c", 0, "s", 1, 7]],
    "end_mark": [["end_mark", ["job", 3], "c", 0, "s", 1, 2]],
    "switch": [["switch", ["job", 3], "c", 1, 2, [0, 4]]],
    "fence": [["fence", ["job", 3], "c", 1, 0, 4]],
    "fence_passed": [["fence_passed", ["job", 3], "c", 1, 4]],
    "group_fence": [["group_fence", ["job", 3], "c", 1, 2]],
    "group_fence_passed": [["group_fence_passed", ["job", 3], "c", 1, 2, 4]],
    "beat": [["beat"]],
    "schema": [["schema"]],
    **{
        type(message).__name__: [["schema"], ["message", ["job", 3], "c", 1, 0, [0, 5], None, message]]
        for message in MESSAGES
    },
}
"""The headers of a packet of each kind; of message classes with several variants the last one."""


def stale_packet(kind, stamp, generation=3):
    """Return a packet with a message of a kind (and its schema, if any), and its number of messages for the job."""
    schema, rows = FLAT.schema.serialize().to_pybytes(), FLAT.serialize().to_pybytes()
    made, buffers = [], []
    for header in STALE[kind]:
        own = []
        if header[0] == "schema":
            own = [schema]
        elif header[0] == "batch":
            own = [rows, HASHES.tobytes()]
        elif header[0] == "message":
            header = [*header[:6], encode_message(header[7], Encoder(lambda _: 0), own)]
        if len(header) > 1:
            header = [header[0], ["job", generation], *header[2:]]
        made.append((header, len(own)))
        buffers += own
    return Packet([pack(made, stamp), *buffers]), sum(len(header) > 1 for header, _ in made)


@pytest.mark.parametrize("kind", STALE)
def test_stale_packet_of_any_kind_is_refused_and_counted(kind, caplog):
    """Stale: of an earlier connection, duplicate, after its connection was closed, or of an earlier generation."""
    caplog.set_level(logging.CRITICAL)
    job_part = Anything()
    ingress = Dispatch({"job": job_part}, "peer", incarnation=2)
    packet, messages = stale_packet(kind, m.Stamp(1, 0))
    ingress.handle(packet)
    assert (job_part.taken, job_part.refused, ingress.refused) == (0, messages, 1)
    fresh, _ = stale_packet(kind, m.Stamp(2, 0))
    ingress.handle(fresh)
    assert (job_part.taken, job_part.errors) == (messages, []), "only its stamp makes the packet stale"
    ingress.handle(fresh)
    assert (job_part.taken, job_part.refused, ingress.refused) == (messages, 2 * messages, 2)
    ingress.handle(stale_packet(kind, m.Stamp(2, 1), generation=2)[0])
    assert (job_part.taken, job_part.refused, ingress.refused) == (messages, 3 * messages, 2)
    ingress.close()
    ingress.handle(stale_packet(kind, m.Stamp(2, 2))[0])
    assert (job_part.taken, job_part.refused, ingress.refused) == (messages, 4 * messages, 3)


def test_stale_packet_test_covers_every_message_kind():
    kinds = {type(message).__name__ for message in MESSAGES}
    assert set(STALE) == {*_FIELDS, "beat", "schema", *kinds} - {"message"}


def test_packet_after_sequence_gap_ends_connection(ingress):
    ingress.handle(packed(end()))
    with pytest.raises(ProtocolError, match=r"sequence=2\) arrived, but .*sequence=1\) is next"):
        ingress.handle(packed(end(), sequence=2))


@pytest.mark.parametrize(
    "header",
    [
        ["batch", ["job", 3], "c", 0, "s", 1, 8, [5, 0.0, False, 0.0]],
        ["batch", ["job", 3], "c", 0, "s", 1, 8, [-1, 0.0, False, 0.0]],
        ["message", ["job", 3], "c", 0, 1, [0, 0], ["Gossip"]],
        ["message", ["job", 3], "c", 0, 1, [0, 0], ["Done", 1, 2, "long", 0.0]],
        ["message", ["job", 3], "c", 0, 1, ["now", 0], ["StopTask", 1]],
    ],
)
def test_invalid_message_fails_its_job_and_next_message_is_read(ingress, job_part, header):
    ingress.handle(packed(header, end()))
    [error] = job_part.errors
    assert isinstance(error, ProtocolError)
    assert len(job_part.taken) == 1


def test_error_of_the_users_rows_fails_the_job_without_a_traceback_in_the_log(job_part, caplog):
    difference = SchemaMismatch("operator 'sums' reads a union of 'a' and 'b', whose columns differ")

    def refuse(target, origin, version):
        raise difference

    job_part.input_ended = refuse
    Dispatch({"job": job_part}, "peer").handle(packed(end()))
    assert job_part.errors == [difference]
    assert [record for record in caplog.records if record.name == "dask_elastic.ingress"] == []


@pytest.mark.parametrize(
    "packet",
    [
        Packet([]),
        Packet([b"\xc1"]),
        Packet([b"\x91" * 2_000]),
        Packet([msgpack.packb([0, []])]),
        Packet([msgpack.packb([0, "none", []])]),
        Packet([msgpack.packb(["none", 0, []])]),
        Packet([msgpack.packb([0, 0, "headers"])]),
        Packet([msgpack.packb([0, 0, [[["end"], 10**18]]])]),
        packed(["gossip", ["job", 3]]),
        packed(["batch", ["job", 3], "c"]),
        packed(["end", ["job", 3, 4], "c", 0, "s", 1, 0]),
        packed(["watermark", ["job", 3], "c", 0, "s", 1, "noon", False, 0]),
        packed(["barrier", ["job", 3], "c", 0, "s", 1, "seventh"]),
        packed(["schema"]),
        Packet([pack([(["schema"], 1)], FIRST), b"no schema"]),
    ],
)
def test_invalid_packet_ends_connection_without_failing_job(ingress, job_part, packet):
    with pytest.raises(ProtocolError):
        ingress.handle(packet)
    assert job_part.errors == []


@pytest.mark.parametrize("bodies", [[], [b"1"], [b"1", b"2", b"3"]])
def test_packet_with_other_number_of_buffers_is_refused_before_its_first_message(ingress, job_part, bodies):
    packet = Packet([pack([(end(), 0), (end(), 2)], FIRST), *bodies])
    with pytest.raises(ProtocolError, match=f"a packet has {len(bodies)} buffers, but its headers announce 2"):
        ingress.handle(packet)
    assert job_part.taken == []
    ingress.handle(packet)
    assert ingress.refused == 1, "a stale packet is refused before its buffers are counted"


# mutated and random bytes

FRAMES = 100_000


def decoded(data, limit=2**20):
    """Read bytes as a connection does: prefix, lengths, headers, schemas, messages; returns how many it read."""
    count, nbytes = Packet.body_bytes(data[: PREFIX.size], limit)
    body = memoryview(data)[PREFIX.size :]
    if len(body) != nbytes:
        raise ProtocolError("a connection would wait for more, or read the rest as the next packet")
    job_part = Anything()
    Dispatch({"job": job_part}, "peer").handle(Packet.from_body(count, body))
    for error in job_part.errors:
        raise error
    return job_part.taken


class Anything:
    """A job part that accepts every decoded message."""

    def __init__(self):
        self.ended = False
        self.refused = 0
        self.spec = SimpleNamespace(generation=3)
        self.exchange = self.moves = self.groups = self
        self.errors = []
        self.taken = 0

    def fail(self, error):
        """Note the error."""
        self.errors.append(error)

    def _take(self, *arguments):
        self.taken += 1

    receive_message = accept = take_credit = input_ended = receive_watermark = receive_barrier = _take
    receive_end_mark = switch = fence = fence_passed = pass_fence = _take


def real_packets():
    """One packet for each kind of message, as a node sends it."""
    made = []
    for message in MESSAGES:
        schemas = []

        def number_of(schema, schemas=schemas):
            if schema not in schemas:
                schemas.append(schema)
            return schemas.index(schema)

        buffers = []
        header = encode_message(message, Encoder(number_of), buffers)
        sent = ["message", ["job", 3], "c", 1, 0, [0, 5], header], len(buffers)
        made.append(Packet([pack([*((["schema"], 1) for _ in schemas), sent], FIRST), *schemas, *buffers]))
    batch = [["batch", ["job", 3], "c", 0, "s", 1, 8, [0, 0.5, True, 0.0]], 2]
    schema = FLAT.schema.serialize().to_pybytes()
    made.append(
        Packet([pack([(["schema"], 1), batch], FIRST), schema, FLAT.serialize().to_pybytes(), HASHES.tobytes()])
    )
    made.append(packed(end(), ["credit", ["job", 3], "c", 0, "s", 1, 77, True, False], ["beat"], WATERMARK))
    made.append(packed(*(header for kind in ("end_mark", "switch", "fence", "group_fence") for header in STALE[kind])))
    return [b"".join(bytes(frame) for frame in packet.to_frames()) for packet in made]


def mutated(data, random):
    """Return faulty bytes: some changed, cut or doubled, or all of them random."""
    kind = random.randrange(8)
    if kind == 0:
        return random.randbytes(random.randrange(200))
    if kind == 1:
        return data[: random.randrange(len(data))]
    changed = bytearray(data)
    if kind == 2:
        start = random.randrange(len(data))
        changed[start:start] = data[start : start + random.randrange(1, 64)]
    # Change bytes behind the prefix only: most packets would otherwise fail at the prefix already.
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(PREFIX.size, len(changed))
        changed[place] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
    return bytes(changed)


@pytest.fixture
def arrow_memory():
    """A memory pool that counts only what Arrow allocates during the test."""
    whole = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(whole)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(whole)


def test_mutated_packets_are_decoded_or_refused_within_bounded_memory(caplog, arrow_memory):
    caplog.set_level(logging.CRITICAL)
    random = Random(20_150_912)
    good = real_packets()
    assert all(decoded(data) >= 1 for data in good)
    read = refused = 0
    for _ in range(FRAMES):
        try:
            read += decoded(mutated(random.choice(good), random)) > 0
        except ProtocolError:
            refused += 1
    assert refused > FRAMES / 3
    assert read > FRAMES / 100
    assert 0 < arrow_memory.max_memory() < 2**20
    # The error of a job refers to stack frames, which refer to the job and some of them to rows: a reference cycle.
    gc.collect()
    assert arrow_memory.bytes_allocated() == 0


def test_oversized_packet_is_refused_before_allocation():
    sign = bytes(Packet([b""]).to_frames()[0])[:4]
    for nbytes in (2**30 + 1, 2**63):
        with pytest.raises(ProtocolError, match=r"elastic\.max-frame"):
            Packet.body_bytes(sign + (1).to_bytes(4, "little") + nbytes.to_bytes(8, "little"), 2**30)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("rows", [FLAT, WORDS], ids=["flat", "stream"])
def test_compressed_rows_are_refused(codec, rows):
    options = pa.ipc.IpcWriteOptions(compression=codec)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    decoder = Decoder()
    decoder.learn(FLAT.schema.serialize().to_pybytes())
    with pytest.raises(ProtocolError, match="compressed"):
        decoder.rows(-2, out.getvalue)
    if rows is FLAT:
        message = list(pa.ipc.MessageReader.open_stream(out.getvalue()))[1]
        with pytest.raises(ProtocolError, match="compressed"):
            decoder.rows(0, message.serialize)
