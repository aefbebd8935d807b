from __future__ import annotations

import json

import dask
import numpy as np
import pytest

from dask_elastic.runtime.client.recordings import save_snapshots
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot


@pytest.fixture
def recording(tmp_path):
    """Return the path of a recording in which the load doubles."""
    nodes = (NodeSnapshot("tcp://a:1", "a", 2), NodeSnapshot("tcp://b:1", "b", 6))
    snapshots = [
        Snapshot(
            float(second),
            nodes,
            tuple(
                JobSnapshot(
                    name, 1, (ExecutorSnapshot(ExecutorId("count", 0), 1, {1: 1}, rate, 500.0, state_bytes=1 << 20),),
                    latency_target=0.1, latency=0.04,
                )
                for name in ("words", "letters")
            ),
        )
        for second, rate in enumerate([200.0] * 3 + [900.0] * 3)
    ]  # fmt: skip
    save_snapshots(snapshots, tmp_path / "snapshots.jsonl")
    return tmp_path / "snapshots.jsonl"


def test_replay_compares_planners(invoke, recording):
    shown = invoke("replay", recording, "--planner", "elasticutor", "--planner", "naive", "--job", "words")
    assert shown.exit_code == 0
    head, first, second = shown.output.splitlines()
    assert head.split()[:4] == ["planner", "job", "changes", "moved"]
    assert first.split()[:5] == ["elasticutor", "words", "1", "0", "B"]
    assert second.split()[:3] == ["naive", "words", "1"]
    assert second.split()[3] != "0"
    assert "40.00 ms" in first


def test_replay_shows_decisions_and_json(invoke, recording):
    shown = invoke("replay", recording, "--decisions")
    assert "Planner (as submitted)" in shown.output
    assert "its cores are too few for 990 tuples/s" in shown.output
    rows = json.loads(invoke("replay", recording, "--json", "--job", "letters").stdout)
    assert [row["cores"] for row in rows] == [1, 1, 1, 3, 3, 3]
    assert {row["recorded_cores"] for row in rows} == {1}


def test_replay_refuses_other_planners_jobs_and_files(invoke, recording):
    assert "'milp' is not one of 'elasticutor', 'naive'" in invoke("replay", recording, "--planner", "milp").output
    assert "has no job 'wrods': its jobs are letters, words" in invoke("replay", recording, "--job", "wrods").output
    recording.write_text("{}")
    assert "not a recording" in invoke("replay", recording).output


@pytest.fixture
def crowded(tmp_path):
    """Return the path of a recording in which one of two workers has all homes."""
    nodes = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))
    executors = tuple(
        ExecutorSnapshot(ExecutorId("count", index), 0, {0: 1}, 200.0, 500.0, state_bytes=1 << 20) for index in range(4)
    )
    job = JobSnapshot("words", 1, executors)
    save_snapshots([Snapshot(float(second), nodes, (job,)) for second in range(45)], tmp_path / "crowded.jsonl")
    return tmp_path / "crowded.jsonl"


def test_replay_compares_placements(invoke, crowded):
    shown = invoke("replay", crowded, "--placement", "milp", "--placement", "eager", "--decisions")
    assert shown.exit_code == 0
    head, first, second, *others = shown.output.splitlines()
    assert head.split()[:4] == ["placement", "job", "moves", "moved"]
    assert first.split()[:5] == ["milp", "words", "2", "2.00", "MiB"]
    assert second.split()[:3] == ["eager", "words", "2"]
    assert "Placement milp" in others
    assert any("homes move for balance" in line for line in others)


def test_replayed_homes_as_json_have_the_recorded_quality_beside_their_own(invoke, crowded):
    rows = json.loads(invoke("replay", crowded, "--placement", "milp", "--json").stdout)
    assert [row["moves"] for row in rows] == [0, 2, 0, 0]
    assert [row["recorded_distance"] for row in rows] == [1.0] * 4
    assert [row["distance"] for row in rows] == [1.0, 1.0, 0.0, 0.0]
    assert rows[1]["pause"] > 0


def test_replay_of_a_placement_has_the_settings_of_the_configuration(invoke, crowded):
    def periods(**configured):
        with dask.config.set({f"elastic.placement-{name}": value for name, value in configured.items()}):
            return json.loads(invoke("replay", crowded, "--placement", "milp", "--json").stdout)

    assert [row["moves"] for row in periods(period="20s", patience=1)] == [2, 0]
    assert max(row["moves"] for row in periods(**{"max-moves": 1})) == 1


def test_replay_refuses_unknown_placement_both_kinds_of_planners_and_short_recording(invoke, crowded, recording):
    assert "'elasticutor' is not one of" in invoke("replay", crowded, "--placement", "elasticutor").output
    both = invoke("replay", crowded, "--placement", "milp", "--planner", "naive")
    assert "give one of them" in both.output
    assert "has no job 'wrods'" in invoke("replay", crowded, "--placement", "milp", "--job", "wrods").output
    assert "shorter than a period of 10 s" in invoke("replay", recording, "--placement", "flux").output


@pytest.fixture
def grouped(tmp_path):
    """Return the path of a recording in which one of two executors has the heavy key groups, and one has moved."""
    nodes = (NodeSnapshot("tcp://a:1", "a", 4), NodeSnapshot("tcp://b:1", "b", 4))
    snapshots = []
    for second in range(45):
        owner = np.array([0, 0, 0, 1, 1] if second < 15 else [0, 0, 1, 1, 1])
        load, executors = np.array([0.3, 0.2, 0.01, 0.05, 0.05]), []
        for index in range(2):
            here = owner == index
            known = {"shard_load": load * here, "shard_bytes": 2.0**20 * here, "groups": np.flatnonzero(here)}
            executors.append(ExecutorSnapshot(ExecutorId("count", index), index, {index: 1}, 100.0, 500.0, **known))
        moves = (EndedGroupMove(1, "count", "progressive", 1, 1 << 20, 0, 0.04, 0.1, 0.0),) if second >= 15 else ()
        about = {"paradigm": "resource-centric", "strategies": {"count": "auto"}, "group_moves": moves}
        snapshots.append(Snapshot(float(second), nodes, (JobSnapshot("words", 1, tuple(executors), **about),)))
    save_snapshots(snapshots, tmp_path / "grouped.jsonl")
    return tmp_path / "grouped.jsonl"


def test_replay_of_key_groups_has_predictions_beside_measurements(invoke, grouped):
    shown = invoke("replay", grouped, "--placement", "flux", "--placement", "ssm", "--decisions")
    assert shown.exit_code == 0
    head, row, *others = shown.output.splitlines()
    assert head.split()[:5] == ["placement", "job", "operator", "groups", "recorded"]
    assert row.split()[:9] == ["flux", "words", "count", "3", "1", "3.00", "MiB", "1.00", "MiB"]
    assert "40.00 ms" in row, "the measured pause"
    assert any("groups move for balance" in line and "Rows wait for" in line for line in others)
    rows = json.loads(invoke("replay", grouped, "--placement", "flux", "--json").stdout)
    assert [one["recorded_pause"] for one in rows] == [None, 0.04, None, None]
    [moved] = [one for one in rows if one["moves"]]
    assert f"Groups {moved['groups'][0][0]}: {moved['groups'][0][1]} → {moved['groups'][0][2]}" in shown.output
    assert {cost["strategy"] for cost in moved["costs"]} == {"progressive", "synchronised"}
    refused = invoke("replay", grouped, "--placement", "ssm").output
    assert "ssm: nodes have consecutive executors, which key groups do not keep" in refused
