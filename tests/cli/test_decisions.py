from __future__ import annotations

import json
import re

import dask
import pytest
from distributed import Client, LocalCluster

from dask_elastic.cli.decision_text import changes_text, decision_text
from dask_elastic.runtime.client.submission.installation import install
from dask_elastic.vocab.errors import PlanningError

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


def test_decision_text_has_changes_latencies_and_reason():
    first, [latencies, reason] = decision_text(decision())
    assert first.startswith("#7  ")
    assert first.endswith("per_key[0] 1 → 3 cores; per_key[1] 2 → 1 core")
    assert latencies == "latency: target 50.00 ms, measured 120.00 ms, predicted 40.00 ms"
    assert reason == "It was too slow."


def test_decision_text_omits_unknown_latencies():
    first, lines = decision_text(decision(target=None, measured=None, predicted=None))
    assert lines == ["It was too slow."]
    assert "None" not in first


def test_decision_not_applied_is_marked():
    assert changes_text(decision(applied=False)).endswith("(not carried out)")
    assert changes_text(decision(applied=False, changes=[])) == "no change"


def test_cores_that_change_workers_are_counted():
    elsewhere = {"executor": "per_key[0]", "before": {A: 2}, "after": {A: 1, B: 1}, "moved_bytes": 5.0}
    assert changes_text(decision(changes=[elsewhere])) == "per_key[0] 2 cores, 1 on another worker than before"


EAGER = {
    "elastic.control-period": "100ms",
    "elastic.control-cooldown": "100ms",
    "elastic.control-release-after": "300ms",
}


@pytest.fixture(scope="module")
def cluster():
    """A cluster whose control loop decides often."""
    with (
        dask.config.set(EAGER),
        LocalCluster(n_workers=1, threads_per_worker=3, processes=False, dashboard_address=":0") as made,
        Client(made) as client,
    ):
        install(client)  # the control loop reads the configuration when it is installed
        yield made


def test_decisions_shows_released_cores(invoke, address, endless, wait_until):
    job = endless("idle")
    wait_until(lambda: any(job.decisions()["changes"]), "a first change of cores")
    shown = invoke("decisions", "idle", "--scheduler", address)
    assert shown.exit_code == 0
    assert re.search(r"^#\d+  \d\d:\d\d:\d\d  .*per_key\[0\] 3 → \d cores?.*\n    \S", shown.output, re.MULTILINE)
    [newest] = json.loads(invoke("decisions", "idle", "--last", 1, "--json", "--scheduler", address).stdout)
    assert newest["job"] == "idle"
    assert newest["number"] in set(job.decisions()["number"])


def test_decisions_without_any_says_so(invoke, address, client, monkeypatch):
    monkeypatch.setattr("dask_elastic.cli.decisions.call_scheduler", lambda client, call: b"[]")
    shown = invoke("decisions", "new", "--scheduler", address)
    assert (shown.exit_code, shown.output) == (0, "No decisions about job 'new' yet.\n")


def test_decisions_of_unknown_job_lists_known_jobs(invoke, address, endless):
    endless("here")
    refused = invoke("decisions", "ther", "--scheduler", address)
    assert refused.exit_code == 1
    assert refused.output == "Error: no job 'ther': the cluster knows ['here']\n"


def test_explain_shows_reasons_and_next_decision(invoke, address, endless, wait_until, tmp_path):
    job = endless("why")
    wait_until(lambda: job.snapshots(last=1), "a snapshot")

    def explained():
        return invoke("explain", "why", "per_key", "--scheduler", address).output

    arrive = re.compile(r"^per_key\[0\]: \d cores?; .* rows/s arrive", re.MULTILINE)
    wait_until(lambda: arrive.search(explained()), "the measured arrivals")
    text = explained()
    assert "why so many:" in text
    assert "at its home" in text
    [row] = json.loads(invoke("explain", "why", "--json", "--scheduler", address).stdout)
    assert (row["operator"], row["executor"]) == ("per_key", 0)
    assert invoke("explain", "why", "--plan", "--scheduler", address).stdout.startswith("why: ")
    invoke("explain", "why", "--snapshots", tmp_path / "why.jsonl", "--scheduler", address)
    assert "why" in invoke("replay", tmp_path / "why.jsonl", "--job", "why").stdout
    assert invoke("explain", "why", "--plan", "--json", "--scheduler", address).exit_code == 2
    refused = invoke("explain", "why", "per_kez", "--scheduler", address)
    assert (refused.exit_code, refused.output) == (
        1, "Error: job 'why' has no stateful operator 'per_kez': choose from ['per_key']\n",
    )  # fmt: skip
    with pytest.raises(PlanningError, match="the control loop carries out its decisions itself"):
        job.plan(dry_run=False)
