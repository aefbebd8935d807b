from __future__ import annotations

import itertools
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
from dask_elastic.cli.demo.checks import compare_state, compare_updates
from dask_elastic.cli.demo.feed import READ_COLUMNS
from dask_elastic.cli.demo.hot_routes import hot_routes, reroute
from dask_elastic.cli.demo.sample import sample
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"

SHORT = ("--months", "2", "--month-seconds", "2")
"""Too short to judge latencies, which would depend on the machine: results and the structure of the output remain."""

UNCALIBRATED = ("--rate", "200", "--latency-target", "200ms")

EVERY = bool(os.environ.get("DASK_ELASTIC_EVERY_CRASH"))
"""Whether the demonstration with Spark calibrates and is interrupted, too."""


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
    deadline = time.monotonic() + 100
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive(group)


def verdicts(output):
    """Return the verdict of each check by its name."""
    rows = [re.split(r"  +", line) for line in output[output.index("\nagainst ") :].splitlines() if "  " in line]
    return {row[0]: row[1] for row in rows[1:]}


def check_output(output):
    """Check everything but the latencies."""
    assert not re.search("Warning|Traceback", output), output
    assert "Service times are emulated by sleeping" in output
    assert re.search(r"^ +0 +\d+ │.*│.*│ January: no hot routes", output, re.MULTILINE)
    assert "the hot routes change now" in output
    assert re.search(r"^ +static +elastic +target$", output, re.MULTILINE)
    found = verdicts(output)
    latencies = {name for name in found if "target" in name or "more such" in name}
    assert len(latencies) == 2
    assert {verdict for name, verdict in found.items() if name not in latencies} == {"ok"}
    assert len(found) == 2 + 2 + 2 + 2 * 11
    # Both jobs lose a worker, wait on screen, and go on.
    lines = [line.split("│") for line in output.splitlines() if line.count("│") == 3]
    [killed] = [place for place, line in enumerate(lines) if "kill -9: one worker of each job" in line[3]]
    assert [lines[killed][half].split()[0] for half in (1, 2)] == ["restarting"] * 2
    for job in ("static", "elastic"):
        [recovered] = [place for place, line in enumerate(lines) if f"{job} goes on after" in line[3]]
        assert recovered > killed


@pytest.mark.timeout(600)
def test_demo_with_spark_is_correct(tmp_path, without_daemon_tracebacks):
    process = start(tmp_path, *SHORT, *(() if EVERY else UNCALIBRATED), "--dashboard-address", ":0")
    output, _ = process.communicate(timeout=580)
    assert process.returncode in (0, 1), output
    assert "against Spark's batch" in output
    assert ("Calibrating" in output) == EVERY
    check_output(without_daemon_tracebacks(output))
    for job in ("flights-static", "flights-elastic"):
        state = pq.read_table(tmp_path / job / "per_route.parquet")
        assert state.column_names == ["route", "flights", "total", "mean", "worst"]
    assert all_ended(process.pid)


@pytest.mark.timeout(1_000)
def test_demo_without_spark_calibrates_is_correct_and_shows_both_jobs(tmp_path):
    process = start(tmp_path, "--no-spark", *SHORT, "--dashboard-address", ":0")
    output, _ = process.communicate(timeout=580)
    assert process.returncode in (0, 1), output
    assert re.search(r"Of \d+ processors, the trial used \S+ and other programs \d", output)
    if "Error: This machine is too busy for the demonstration" in output:
        process = start(tmp_path, "--no-spark", *SHORT, *UNCALIBRATED, "--dashboard-address", ":0")
        output, _ = process.communicate(timeout=400)
        assert process.returncode in (0, 1), output
    else:
        assert re.search(r"Hence \d+ flights per second; .* a target of \d+ ms", output)
    assert "against pandas" in output
    check_output(output)
    for job in ("flights-static", "flights-elastic"):
        assert re.search(rf"http://\S+/elastic\?job={job}$", output, re.MULTILINE)
        assert [*(tmp_path / job / "route_updates").glob("*.parquet")]
    assert all_ended(process.pid)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("feed", [["--no-spark"], *([[]] if EVERY else [])], ids=lambda feed: "".join(feed) or "spark")
def test_interrupted_demo_leaves_no_process(feed, tmp_path, without_daemon_tracebacks):
    process = start(tmp_path, *feed, *UNCALIBRATED, "--month-seconds", "60", "--dashboard-address", ":0")
    for line in process.stdout:
        if "no hot routes" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, output
    assert "Traceback" not in without_daemon_tracebacks(output)
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
    assert all(check.passed for check in compare_state("static", "per_route", right, expected))
    wrong = right.copy()
    wrong.loc[1, column] += 1
    found = [check.what for check in compare_state("static", "per_route", wrong, expected) if not check.passed]
    assert found == [f"static: per_route: {column}"]


def test_check_fails_on_missing_key(expected):
    [found] = compare_state("static", "per_route", expected.reset_index().iloc[:1], expected)
    assert (found.what, found.passed, found.details) == ("static: per_route: keys", False, "1 of 2")


def test_check_fails_on_missing_last_update(expected, tmp_path):
    first = expected.assign(flights=0, total=0).reset_index()
    updates = pd.concat([first, expected.reset_index()], ignore_index=True)
    pq.write_table(pa.Table.from_pandas(updates), tmp_path / "updates.parquet")
    assert compare_updates("static", tmp_path, expected).passed
    pq.write_table(pa.Table.from_pandas(updates.iloc[:3]), tmp_path / "updates.parquet")
    assert not compare_updates("static", tmp_path, expected).passed


def test_check_fails_on_repeated_update(expected, tmp_path):
    updates = expected.reset_index()
    pq.write_table(pa.Table.from_pandas(pd.concat([updates, updates.iloc[:1]])), tmp_path / "updates.parquet")
    found = compare_updates("static", tmp_path, expected)
    assert (found.passed, found.details) == (False, "3 updates, 1 of them repeated")


@pytest.fixture(scope="module")
def year():
    return flights.load()


@pytest.fixture(scope="module")
def hot(year):
    return hot_routes(year["route"].unique().to_pylist(), 4, 64)


def test_hot_routes_of_a_month_share_a_static_executor_that_differs_from_month_to_month(hot):
    assert hot[0] == []
    space = KeySpace(4, 64)
    places = [space.executor_of(hash_columns(pa.record_batch({"route": routes}), ("route",))) for routes in hot[1:]]
    assert all(len(set(routes)) == 4 for routes in hot[1:])
    assert all(len(set(place.tolist())) == 1 for place in places)
    assert all(one[0] != other[0] for one, other in itertools.pairwise(places))


def test_rerouting_makes_the_hot_routes_of_a_month_hot(year, hot):
    changed = reroute(year, hot).select(["sched_dep", "route"]).to_pandas()
    month = changed["sched_dep"].dt.month
    assert changed["route"][month == 1].equals(year["route"].to_pandas()[month == 1])
    for number in range(2, 13):
        shares = changed["route"][month == number].value_counts(normalize=True)
        assert set(shares.index[:4]) == set(hot[number - 1])
        assert 0.5 < shares.iloc[:4].sum() < 0.7


def test_rerouting_depends_only_on_the_row(year, hot):
    some = year.select(READ_COLUMNS).slice(100_000, 5_000)
    parts = [reroute(some.slice(start, 700), hot) for start in range(0, 5_000, 700)]
    assert pa.concat_tables(parts).to_pandas().equals(reroute(some, hot).to_pandas())


def test_sample_has_the_wanted_flights_of_each_month_in_order(year):
    found = sample(year, [500, 700, 500])["sched_dep"].to_pandas()
    assert found.dt.month.value_counts().to_dict() == {1: 500, 2: 700, 3: 500}
    assert found.is_monotonic_increasing
    assert len(sample(year, [40_000])) == 40_000
