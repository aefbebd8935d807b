from __future__ import annotations

import subprocess
import sys
import time

import click
import pytest

from dask_elastic.cli.demo import calibration
from dask_elastic.cli.demo.calibration import Calibration
from dask_elastic.cli.demo.load import (
    BUSY_TARGET,
    LEAST_NOISE,
    LEAST_RATE,
    MOST_TARGET,
    NOISE,
    TRIAL_RATE,
    WORK,
    Load,
    Machine,
    fit,
    rate_of,
)
from dask_elastic.cli.demo.outage import SETTLING
from dask_elastic.cli.demo.schedule import SECONDS_AFTER_LAST_LOSS, Schedule
from dask_elastic.cli.demo.sent_feed import SentFeed
from dask_elastic.cli.demo.usage import Usage

QUIET, BUSY = Machine(2, 0.1, 1.1, 0.06), Machine(2, 1.0, 1.3, 0.12)
UNEVEN = 1.01 * MOST_TARGET / NOISE


def test_fast_machine_gets_the_whole_rate():
    assert fit(Machine(32, 0.0, 0.5, 0.01)).rate == TRIAL_RATE


def test_busy_machine_gets_fewer_and_slower_rows_and_a_looser_target():
    quiet, busy = fit(QUIET), fit(BUSY)
    assert busy.rate < quiet.rate
    assert busy.target > quiet.target
    assert all(busy.service[operator] > quiet.service[operator] for operator in WORK)


def test_work_does_not_depend_on_the_machine():
    for load in (fit(QUIET), fit(Machine(2, 2.0, 0.4, 0.12))):
        assert {name: seconds * load.rate for name, seconds in load.service.items()} == pytest.approx(WORK)


def test_machine_without_free_processors_but_with_even_latencies_gets_the_least_rate():
    assert fit(Machine(2, 2.0, 0.4, 0.09)) == Load(LEAST_RATE, 0.4)


def test_rate_exceeds_that_of_no_trial():
    assert rate_of(Machine(32, 0.0, 0.1, 0.01, rate=150.0)) == 150.0


def test_uneven_latencies_fit_no_load():
    assert fit(Machine(2, 0.0, 0.4, UNEVEN)) is None
    assert fit(Machine(2, 0.0, 0.4, UNEVEN, LEAST_RATE)) == Load(LEAST_RATE, MOST_TARGET)
    assert fit(Machine(2, 0.0, 0.4, 0.99 * MOST_TARGET / LEAST_NOISE, LEAST_RATE)) == Load(LEAST_RATE, MOST_TARGET)
    assert fit(Machine(2, 0.0, 0.4, 1.01 * MOST_TARGET / LEAST_NOISE, LEAST_RATE)) is None


@pytest.fixture
def calibrate(monkeypatch):
    """Return a function that calibrates with a p99 for each rate; it returns the load and the rates of the trials."""

    def run(p99, others=0.1):
        rates = []

        def trial(self, flights, rate, number):
            assert number == len(rates)
            rates.append(rate)
            return Machine(2, others, 1.0 * rate / TRIAL_RATE, p99(rate), rate)

        monkeypatch.setattr(Calibration, "_try", trial)
        monkeypatch.setattr(calibration, "sample", lambda flights, rows: None)
        try:
            return Calibration({}, SentFeed(), {}, None).run(None), rates
        except click.ClickException as error:
            return error, rates

    return run


def test_even_machine_needs_one_trial(calibrate):
    assert calibrate(lambda rate: 0.05) == (Load(TRIAL_RATE, 0.2), [TRIAL_RATE])


def test_machine_too_busy_for_a_rate_is_tried_with_half_of_it_and_gets_the_loosest_target(calibrate):
    found, rates = calibrate(lambda rate: 0.1 if rate < 250 else 0.3)
    assert rates == [400.0, 200.0]
    assert found == Load(200.0, BUSY_TARGET)


def test_machine_too_busy_for_the_least_rate_is_refused(calibrate):
    error, rates = calibrate(lambda rate: 0.7, others=1.9)
    assert rates == [TRIAL_RATE, LEAST_RATE, LEAST_RATE, LEAST_RATE]
    assert "too busy for the demonstration: even 100 flights per second" in error.message
    assert "--rate and --latency-target" in error.message


def test_usage_counts_the_processes_that_this_one_started():
    usage = Usage()
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 60
        # Little, because other programs may leave little.
        while (used := usage.sample()[0]) < 0.05 and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        loop.kill()
        loop.wait()
    assert used >= 0.05


@pytest.mark.parametrize(("months", "longer"), [(1, [2]), (2, [2, 1]), (4, [1, 2, 1, 1]), (5, [1, 1, 2, 1, 1])])
def test_month_of_the_loss_is_longer_by_the_seconds_that_are_not_judged(months, longer):
    schedule = Schedule(months, SETTLING, loss_is_last=False)
    assert schedule.rows(100.0) == [round(100 * SETTLING * each) for each in longer]


def test_workers_are_killed_in_the_middle_of_a_month_or_after_all_judged_seconds():
    assert Schedule(3, 6.0, loss_is_last=False).loss_row([600, 1_800, 2_400]) == 1_200
    last = Schedule(2, 4.0, loss_is_last=True)
    ends = [400, 800 + round(100 * SECONDS_AFTER_LAST_LOSS)]
    assert last.rows(100.0) == [400, ends[1] - 400]
    assert last.loss_row(ends) == 800
