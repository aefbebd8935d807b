"""Typed values on the wire: each type comes back as it was, and messages of another shape are refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest
from distributed.protocol import Serialize, dumps, loads, to_serialize
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.protocol.calls import message_of
from dask_elastic.runtime.protocol.codec import Payload, codec, decode, encode
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.runtime.protocol.part_calls import CheckCode, Prepare
from dask_elastic.runtime.protocol.reports import (
    EdgeRate,
    ExecutorDetail,
    ExecutorReport,
    InstanceRows,
    InstanceTime,
    PartReport,
)
from dask_elastic.vocab.epoch import AttemptId, StagedPart


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True)
class Inner:
    name: str
    point: Point


@dataclass(frozen=True)
class Single:
    value: int


@dataclass(frozen=True)
class Slotted:
    __slots__ = ("value",)
    value: int


@dataclass(frozen=True)
class Checked:
    least: int

    def __post_init__(self):
        if self.least < 0:
            raise ValueError("below zero")


@dataclass(frozen=True)
class Outer:
    flag: bool
    color: Color
    inner: Inner | None
    points: tuple[Point, ...]
    pair: tuple[str, Point]
    by_node: dict[int, int]
    inners: dict[str, tuple[Inner, ...]]
    names: frozenset[str]
    single: Single
    slotted: Slotted
    data: bytes
    anything: Any = None


OUTER = Outer(
    flag=True, color=Color.RED, inner=Inner("a", Point(1, 0.5)), points=(Point(2, 1.5), Point(3, 2.5)),
    pair=("b", Point(4, 3.5)), by_node={0: 1, 7: 2}, inners={"c": (Inner("d", Point(5, 4.5)),), "e": ()},
    names=frozenset({"f"}), single=Single(6), slotted=Slotted(7), data=b"bytes", anything=("g", 1.5, None),
)  # fmt: skip


def through_dask(plain):
    """Return a plain value after Dask has sent it to another process."""
    return loads(dumps({"value": plain}))["value"]


@pytest.mark.parametrize("send", [lambda plain: plain, through_dask], ids=["one process", "two processes"])
def test_every_type_of_the_table_round_trips(send):
    assert decode(Outer, send(encode(Outer, OUTER))) == OUTER
    without = Outer(**{**vars(OUTER), "inner": None})
    assert decode(Outer, send(encode(Outer, without))) == without


def test_plain_values_are_native_msgpack_values():
    def check(plain):
        assert type(plain) in (bool, int, float, str, bytes, type(None), tuple, dict)
        for part in [*plain, *plain.values()] if isinstance(plain, dict) else plain if isinstance(plain, tuple) else ():
            check(part)

    check(encode(Outer, OUTER))


def test_field_names_are_not_sent():
    assert encode(Inner, OUTER.inner) == ("a", (1, 0.5))


def test_decoded_dict_is_a_copy():
    given = {0: 1}
    assert encode(dict[int, int], given) is not given


@pytest.mark.parametrize("plain", [("a",), ("a", (1, 0.5), 3), ("a", (1,)), None, 7])
def test_record_of_another_shape_is_refused(plain):
    with pytest.raises((ValueError, TypeError)):
        decode(Inner, plain)


def test_decoding_runs_field_checks_of_record():
    with pytest.raises(ValueError, match="below zero"):
        decode(Checked, (-1,))


@pytest.mark.parametrize("kind", [set[int], int | Point, dict[Point, int], complex, Point | Inner])
def test_codec_for_type_without_plain_form_is_refused(kind):
    with pytest.raises(TypeError, match="cannot be sent"):
        codec(kind)


def test_payload_is_sent_as_frame_and_relayed_without_decoding():
    data = memoryview(b"rows")
    wrapped = encode(tuple[Payload, ...], (data,))
    assert isinstance(wrapped[0], Serialize)
    assert bytes(decode(tuple[Payload, ...], through_dask(wrapped))[0]) == b"rows"
    assert bytes(decode(tuple[Payload, ...], wrapped)[0]) == b"rows"
    serialized = loads(dumps({"value": wrapped}), deserialize=False)["value"]
    assert encode(tuple[Payload, ...], decode(tuple[Payload, ...], serialized)) == serialized
    already = to_serialize(data)
    assert encode(Payload, already) is already


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**64 - 1), st.text(), st.integers(0, 2**40))
def test_digests_of_64_bits_round_trip(digest, query, rows):
    part = StagedPart(AttemptId(query, 3, 0, "7-ab"), 1, rows, digest)
    assert decode(StagedPart, through_dask(encode(StagedPart, part))) == part


def test_report_round_trips():
    executor = ExecutorReport("op", 1, 0, 2, 1.0, 2.0, None, 3.0, 4.0, 5.0, 6, 7.0, None, None, 8, 9, 10, 11)
    detail = ExecutorDetail(b"histogram", None, 0.0, b"load", b"bytes", 3, (("rows", 0, 2.5),))
    times = (InstanceTime("op", 1, None, 0), InstanceTime("rows", 0, 17, 2))
    report = PartReport(False, b"error", (executor,), (detail,), event_times=times, dead_letters={"op": 3}, lost=("a",))
    instance = InstanceRows("rows", 0, 5, 2.5, busy=0.25, backpressured=0.5, lag=1.5)
    report = replace(report, sources=(instance,), edges=(EdgeRate("rows", "op", 2.5),))
    assert decode(PartReport, through_dask(encode(PartReport, report))) == report


def test_code_of_a_job_is_not_copied_for_each_worker():
    code = bytes(2**20)
    spec = JobSpec("job", 1, ("a", "b"), 0, (), {}, {}, job_options({}))
    for call in (CheckCode("job", memoryview(code)), Prepare.for_nodes(spec, code)(1)):
        frames = [np.frombuffer(frame, np.uint8) for frame in dumps(message_of(call))]
        [frame] = [frame for frame in frames if len(frame) >= len(code)]
        assert np.shares_memory(frame, np.frombuffer(code, np.uint8))
