from __future__ import annotations

import json

import pytest

from dask_elastic.runtime.client.recordings import save_snapshots
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
