from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"


@pytest.fixture(scope="module")
def demo():
    sys.path.insert(0, str(DEMO.parent))
    spec = importlib.util.spec_from_file_location("demo_example", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(DEMO.parent))
    return module


def start(out, *arguments):
    here = [str(ROOT), str(ROOT / "plugins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, str(DEMO), "--out", str(out), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(here), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell's background jobs ignore Ctrl-C, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def alive(group):
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    members = [line.split() for line in listed.splitlines()]
    return [stat for pgid, stat in members if int(pgid) == group and not stat.startswith("Z")]


def gone_soon(group):
    deadline = time.monotonic() + 10
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(group)


def test_a_short_replay_is_right_and_moves_shards_between_workers(tmp_path):
    process = start(tmp_path, "--flights", "30000", "--rate", "6000")
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert "All of it is right." in said
    assert "WRONG" not in said
    assert pq.read_table(tmp_path / "per_route.parquet").column_names == ["route", "flights", "total", "mean", "worst"]
    assert [*(tmp_path / "route_updates").glob("*.parquet")]
    assert gone_soon(process.pid)


def test_interrupted_it_leaves_no_process(tmp_path):
    process = start(tmp_path)
    for line in process.stdout:
        if "%" in line and "p50" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert gone_soon(process.pid)


@pytest.mark.parametrize("column", ["flights", "total", "worst", "mean"])
def test_a_wrong_value_is_found(demo, column):
    expected = pd.DataFrame(
        {"flights": [1, 2], "total": [3, 4], "mean": [3.0, 2.0], "worst": [3, 5]},
        index=pd.Index(["a", "b"], name="tailnum"),
    )
    right = expected.reset_index()
    assert all(passed for _, passed, _ in demo.compare("per_plane", right, expected))
    wrong = right.copy()
    wrong.loc[1, column] += 1
    assert [what for what, passed, _ in demo.compare("per_plane", wrong, expected) if not passed] == [
        f"per_plane: {column}"
    ]


def test_a_missing_key_is_found(demo):
    expected = pd.DataFrame(
        {"flights": [1, 2], "total": [3, 4], "mean": [3.0, 2.0], "worst": [3, 5]},
        index=pd.Index(["a", "b"], name="route"),
    )
    found = [*demo.compare("per_route", expected.reset_index().iloc[:1], expected)]
    assert found == [("per_route: keys", False, "1 of 2")]


def test_the_rerouting_depends_on_the_row_alone(demo):
    flights = demo.flights.load().select(demo.SURGE_COLUMNS).slice(100_000, 5_000).combine_chunks()
    reroute = demo.surge(["A-B", "C-D", "E-F"])
    [whole] = flights.to_batches()
    parts = [reroute(whole.slice(start, 7)) for start in range(0, 5_000, 7)]
    assert pd.concat([part.to_pandas() for part in parts], ignore_index=True).equals(reroute(whole).to_pandas())
    hot = reroute(whole)["route"].to_pandas().isin(["A-B", "C-D", "E-F"]).mean()
    assert 0.3 < hot < 0.5
