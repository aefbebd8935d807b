from __future__ import annotations

from dask_elastic.cli.decision_text import changes_text, decision_text, moved_cores

A, B = "tcp://a:1", "tcp://b:1"
GROWN = {"executor": "per_key[0]", "before": {A: 1}, "after": {A: 2, B: 1}, "moved_bytes": 10.0}
SHRUNK = {"executor": "per_key[1]", "before": {A: 1, B: 1}, "after": {A: 1}, "moved_bytes": 0.0}


def decision(**changes):
    return {
        "number": 7, "time": 0.0, "job": "made", "generation": 1, "target": 0.05, "measured": 0.12, "predicted": 0.04,
        "feasible": True, "wanted": {"per_key[0]": 3}, "changes": [GROWN, SHRUNK], "applied": True,
        "reason": "It was too slow.", "starved": 0, "bound": [], "moved_bytes": 10.0, "observed": None,
        "seconds": 0.001, **changes,
    }  # fmt: skip


def test_a_decision_tells_what_changes_of_what_and_why():
    first, latencies, reason = decision_text(decision()).splitlines()
    assert first.startswith("#7  ")
    assert first.endswith("per_key[0] 1 → 3 cores; per_key[1] 2 → 1 core")
    assert latencies == "    latency: target 50.00 ms, measured 120.00 ms, predicted 40.00 ms"
    assert reason == "    It was too slow."


def test_what_is_not_known_is_left_out():
    text = decision_text(decision(target=None, measured=None, predicted=None))
    assert "latency" not in text
    assert "None" not in text


def test_what_was_not_carried_out_says_so_and_moves_nothing():
    assert changes_text(decision(applied=False)).endswith("(not carried out)")
    assert moved_cores(decision(applied=False)) == (0, 0)
    assert changes_text(decision(applied=False, changes=[])) == "no change"


def test_cores_are_counted_where_they_come_and_go():
    assert moved_cores(decision()) == (2, 1)
    elsewhere = {"executor": "per_key[0]", "before": {A: 2}, "after": {A: 1, B: 1}, "moved_bytes": 5.0}
    assert moved_cores(decision(changes=[elsewhere])) == (1, 1)
