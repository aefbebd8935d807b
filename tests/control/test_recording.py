from __future__ import annotations

import json
from dataclasses import fields

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.recording import (
    decision_from_dict,
    decision_to_dict,
    dumps,
    loads,
    snapshot_from_dict,
    snapshot_to_dict,
)
from dask_elastic.runtime.client.recordings import load_snapshots
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.group_flow import GroupFlow
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision, HomeChange, HomeForecast, StrategyCost
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot, SourceHome, Traffic

positive = st.floats(0, 1e12, allow_subnormal=True)
maybe = st.none() | positive
names = st.text(max_size=8)
counts = st.integers(0, 2**40)
arrays = st.none() | st.lists(st.floats(allow_nan=False), max_size=5).map(np.array)


@st.composite
def snapshots(draw):
    nodes = draw(
        st.lists(
            st.builds(NodeSnapshot, names, names, st.integers(0, 64), st.booleans(), st.integers(0, 2**40)), max_size=3
        )
    )
    places = st.integers(0, max(len(nodes) - 1, 0))
    numbers = st.lists(st.integers(-1, 2**31), max_size=3).map(lambda found: np.array(found, np.int64))
    rates = st.lists(st.floats(0.0, 1e9), max_size=3).map(lambda found: np.array(found, np.float64))
    flows = st.builds(GroupFlow, names, numbers, numbers, rates)
    executors = st.builds(
        ExecutorSnapshot,
        executor=st.builds(ExecutorId, names, st.integers(0, 99)),
        home=places,
        cores=st.dictionaries(places, st.integers(1, 9), max_size=3),
        arrival_rate=positive,
        service_rate=maybe,
        throughput=positive,
        customer_rows=positive,
        queue=st.integers(0, 2**60),
        state_bytes=st.integers(0, 2**60),
        bytes_in=positive,
        bytes_out=positive,
        sojourn=maybe,
        entry=st.booleans(),
        pinned=st.booleans(),
        moves=st.integers(0, 99),
        windows=st.none() | st.builds(RowCounts, *[st.integers(0, 99)] * 5),
        open_windows=st.none() | st.integers(0, 99),
        traffic=st.lists(st.builds(Traffic, names, st.integers(0, 99), positive), max_size=3).map(tuple),
        shard_load=arrays,
        shard_bytes=arrays,
        flows=st.lists(flows, max_size=2).map(tuple),
        groups=st.none() | numbers,
    )
    jobs = st.builds(
        JobSnapshot,
        names,
        st.integers(1, 99),
        st.lists(executors, max_size=2 if nodes else 0).map(tuple),
        maybe,
        names,
        names,
        st.booleans(),
        maybe,
        maybe,
        sources=st.lists(st.builds(SourceHome, names, st.integers(0, 9), places), max_size=2).map(tuple),
        strategies=st.dictionaries(names, names, max_size=2),
        group_moves=st.lists(
            st.builds(
                EndedGroupMove, counts, names, names, counts, counts, counts, positive, positive, positive, maybe
            ),
            max_size=2,
        ).map(tuple),
    )
    return Snapshot(draw(positive), tuple(nodes), tuple(draw(st.lists(jobs, max_size=2))))


def same(one, other):
    """Return whether two records have the same values, arrays included."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple) and not isinstance(one, ExecutorId):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)
        )
    return type(one) is type(other) and one == other


@settings(max_examples=100, deadline=None)
@given(st.lists(snapshots(), max_size=3))
def test_recording_round_trip_is_lossless(recorded):
    assert same(tuple(loads(dumps(recorded))), tuple(recorded))


@settings(max_examples=50, deadline=None)
@given(snapshots())
def test_snapshot_dict_survives_msgpack(snapshot):
    plain = msgpack.unpackb(msgpack.packb(snapshot_to_dict(snapshot)))
    assert same(snapshot_from_dict(plain), snapshot)


def test_recording_of_earlier_release_lacks_traffic_memory_and_moves_of_groups():
    executor = ExecutorSnapshot(ExecutorId("op", 0), 0, {0: 1}, 1.0, 2.0)
    snapshot = Snapshot(1.0, (NodeSnapshot("a", "h", 4),), (JobSnapshot("j", 1, (executor,)),))
    plain = snapshot_to_dict(snapshot)
    del plain["nodes"][0]["memory"], plain["jobs"][0]["sources"], plain["jobs"][0]["placement"]
    del plain["jobs"][0]["executors"][0]["traffic"], plain["jobs"][0]["executors"][0]["flows"]
    del plain["jobs"][0]["executors"][0]["groups"]
    del plain["jobs"][0]["strategies"], plain["jobs"][0]["group_moves"]
    assert same(snapshot_from_dict(plain), snapshot)


def test_recording_of_a_large_job_is_encoded_in_small_pieces_with_pauses(monkeypatch):
    """Encoding JSON holds the interpreter lock: the event loop of the scheduler waits for each piece."""
    executors = tuple(ExecutorSnapshot(ExecutorId("op", index), 0, {0: 1}, 1.0, 2.0) for index in range(200))
    snapshot = Snapshot(1.0, (NodeSnapshot("a", "h", 4),), (JobSnapshot("j", 1, executors), JobSnapshot("k", 1, ())))
    encode, pieces, pauses = json.dumps, [], []
    monkeypatch.setattr(json, "dumps", lambda *given, **options: pieces.append(encode(*given, **options)) or pieces[-1])
    text = dumps([snapshot] * 3, lambda: pauses.append(1))
    assert same(tuple(loads(text)), (snapshot,) * 3)
    assert len(pauses) == 600
    assert max(map(len, pieces)) < len(text) / 300


def test_recording_converts_numpy_numbers():
    executor = ExecutorSnapshot(
        ExecutorId("op", np.int64(1)), np.int64(0), {np.int64(0): np.int64(2)}, np.float64(1.5), None, queue=np.int64(3)
    )
    snapshot = Snapshot(np.float64(1), (NodeSnapshot("a", "h", np.int64(4)),), (JobSnapshot("j", 1, (executor,)),))
    (read,) = loads(dumps([snapshot]))
    assert read.jobs[0].executors[0].cores == {0: 2}
    msgpack.packb(snapshot_to_dict(snapshot))


FORECAST = HomeForecast("flux", 5.5, 0.3, 0.5, -2.0, (StrategyCost("none", 0.1, 0.0, 0.0, 2.0, allowed=False),))
MOVED = HomeChange(ExecutorId("op", 2), "tcp://a:1", "tcp://b:1", 0.0, 0.1)


def test_decision_dict_survives_msgpack_and_json():
    change = CoreChange("job", 2, ExecutorId("op", 1), {0: 1}, {0: 1, 3: 2}, 5.5)
    decision = Decision(
        7, 1.25, "job", 2, None, 0.1, float("inf"), False, {ExecutorId("op", 1): 3}, (change,), True, "why", 2, ("op",),
        5.5, 0.2, 0.001, (HomeChange(ExecutorId("op", 1), "tcp://a:1", "tcp://b:1", 5.5, 0.25, FORECAST), MOVED),
        ("restarted from checkpoint 3",),
    )  # fmt: skip
    plain = msgpack.unpackb(msgpack.packb(decision_to_dict(decision)))
    assert decision_from_dict(plain) == decision
    assert decision_from_dict(json.loads(json.dumps(decision_to_dict(decision)))) == decision


def test_decision_dicts_of_the_loop_survive_msgpack(kit):
    load = kit.Load("job", lambda now: 4000, [(kit.executors("op", [0], [1], 1000.0), kit.even(1))], target=0.05)
    plant = kit.Plant(kit.nodes(2, 4), [load]).run(3, ControlLoop())
    assert plant.decisions("job")
    for decision in plant.decisions("job"):
        assert decision_from_dict(msgpack.unpackb(msgpack.packb(decision_to_dict(decision)))) == decision


LINES = dumps([Snapshot(1.0, (), ()), Snapshot(2.0, (), ())]).splitlines()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1 is damaged"),
        (b"hello", "line 1 is damaged"),
        (b"[]", "line 1: this is not a recording"),
        (b'{"format":"other"}', "line 1: this is not a recording"),
        (LINES[0].replace(b"1", b"9"), "line 1: the recording has version 9"),
        (b"\n".join([*LINES[:2], LINES[2][:9]]), "line 3 is damaged"),
        (b"\n".join([LINES[0], b"{}"]), "line 2 is not a snapshot: KeyError"),
        (b"\n".join([LINES[0], b'{"now":1,"nodes":[{"x":1}],"jobs":[]}']), "line 2 is not a snapshot: TypeError"),
    ],
)
def test_damaged_recording_raises_with_line(data, message):
    with pytest.raises(PlanningError, match=message):
        loads(data)


def test_damaged_file_of_snapshots_is_named(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("{}")
    with pytest.raises(PlanningError, match=r"notes\.txt: line 1: this is not a recording"):
        load_snapshots(path)
