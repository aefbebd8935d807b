from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_elastic.cli.demo import flights
from dask_elastic.cli.demo.checks import as_text, compare_state, compare_updates, movements
from dask_elastic.cli.demo.hot_routes import READ_COLUMNS, reroute

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"

HEAVY = ("--rate", "7000")
"""One executor gets three quarters of the first month: at 600 µs per row, more than its three cores can process."""


def start(out, *arguments):
    """Start the demonstration, with Spark unless the arguments contain --no-spark."""
    here = [str(ROOT), str(ROOT / "plugins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, str(DEMO), "--out", str(out), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(here), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Children of a shell's background job would inherit that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def alive(group):
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    members = [line.split() for line in listed.splitlines()]
    return [stat for pgid, stat in members if int(pgid) == group and not stat.startswith("Z")]


def all_ended(group):
    deadline = time.monotonic() + 30
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(group)


@pytest.mark.timeout(300)
def test_demo_with_spark_is_correct_and_moves_shards_and_cores(tmp_path):
    process = start(tmp_path, "--flights", "100000", *HEAVY, "--seconds", "250", "--dashboard-address", ":0")
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    assert "against Spark's batch" in output
    assert "All checks passed." in output
    assert "WRONG" not in output
    assert "Warning" not in output
    assert re.search(r"flights read +ok +100,000 of 100,000", output)
    assert re.search(r"epoch \d+, \d of 2 wait", output)
    assert re.search(r"-> .*per_route\[\d\] \d → \d cores?", output)
    assert pq.read_table(tmp_path / "per_route.parquet").column_names == ["route", "flights", "total", "mean", "worst"]
    assert all_ended(process.pid)


@pytest.mark.timeout(200)
def test_demo_without_spark_is_correct_and_moves_shards_and_cores(tmp_path):
    process = start(tmp_path, "--no-spark", *HEAVY, "--seconds", "30", "--dashboard-address", ":0")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "against pandas" in output
    assert "All checks passed." in output
    assert "WRONG" not in output
    assert "Reading stops after" in output
    assert re.search(r"Dashboard:  http://\S+/elastic$", output, re.MULTILINE)
    assert [*(tmp_path / "route_updates").glob("*.parquet")]
    assert all_ended(process.pid)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", ["--spark", "--no-spark"])
def test_interrupted_demo_leaves_no_process(tmp_path, how):
    process = start(tmp_path, how, "--dashboard-address", ":0")
    for line in process.stdout:
        if "%" in line and "p50" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert all_ended(process.pid)


@pytest.fixture
def expected():
    return pd.DataFrame(
        {"flights": [1, 2], "total": [3, 4], "mean": [3.0, 2.0], "worst": [3, 5]},
        index=pd.Index(["a", "b"], name="route"),
    )


@pytest.mark.parametrize("column", ["flights", "total", "worst", "mean"])
def test_check_fails_on_wrong_value(expected, column):
    right = expected.reset_index()
    assert all(check.passed for check in compare_state("per_route", right, expected))
    wrong = right.copy()
    wrong.loc[1, column] += 1
    found = [check.what for check in compare_state("per_route", wrong, expected) if not check.passed]
    assert found == [f"per_route: {column}"]


def test_check_fails_on_missing_key(expected):
    [found] = compare_state("per_route", expected.reset_index().iloc[:1], expected)
    assert (found.what, found.passed, found.details) == ("per_route: keys", False, "1 of 2")


def test_check_fails_on_missing_last_update(expected, tmp_path):
    first = expected.assign(flights=0, total=0).reset_index()
    updates = pd.concat([first, expected.reset_index()], ignore_index=True)
    pq.write_table(pa.Table.from_pandas(updates), tmp_path / "updates.parquet")
    assert compare_updates(tmp_path, expected).passed
    pq.write_table(pa.Table.from_pandas(updates.iloc[:3]), tmp_path / "updates.parquet")
    assert not compare_updates(tmp_path, expected).passed


@pytest.mark.parametrize(
    ("moves", "added", "verdicts"), [(3, 2, [True, True]), (0, 2, [False, True]), (3, 0, [True, False])]
)
def test_check_fails_when_nothing_moved(moves, added, verdicts):
    metrics = pd.DataFrame({"moves": [moves, 0], "moves_across": [0, 0]})
    checks = [*movements(metrics, added, 0)]
    assert [check.passed for check in checks] == verdicts
    assert ("WRONG" in as_text(checks, "pandas")) == (not all(verdicts))


def test_rerouting_depends_only_on_the_row():
    some = flights.load().select(READ_COLUMNS).slice(100_000, 5_000).combine_chunks()
    change = reroute(["A-B", "C-D", "E-F"])
    [whole] = some.to_batches()
    parts = [change(whole.slice(start, 7)) for start in range(0, 5_000, 7)]
    assert pd.concat([part.to_pandas() for part in parts], ignore_index=True).equals(change(whole).to_pandas())
    hot = change(whole)["route"].to_pandas().isin(["A-B", "C-D", "E-F"]).mean()
    assert 0.3 < hot < 0.5
