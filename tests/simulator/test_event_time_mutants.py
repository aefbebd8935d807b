"""Faults put into the protocol of watermarks on purpose: the checks must see each of them."""

from __future__ import annotations

import pytest
from timed_scenario import TimedScenario

from dask_elastic.executor.inputs import Inputs
from dask_elastic.executor.piece import Receipt
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.source_clock import SourceClock
from dask_elastic.executor.task import Task
from dask_elastic.executor.watermarks import Watermarks

MOST_SEEDS = 100


def let_go(receipt: Receipt) -> None:
    """Count a batch as settled whatever becomes of its rows."""
    Watermarks.settled(receipt.span)
    receipt.span = None


def a_watermark_overtakes_what_waits(monkeypatch):
    """It passes as soon as it has come."""
    monkeypatch.setattr(Watermarks, "arrived", lambda self: None)


def a_watermark_waits_for_one_batch_of_many(monkeypatch):
    def settled(span):
        if span is not None:
            span.open = 0

    monkeypatch.setattr(Watermarks, "settled", staticmethod(settled))


def rows_that_are_taken_count_as_done(monkeypatch):
    """A remote task has been sent them, and has not answered."""
    real = Task.send

    def send(self, work, now):
        for piece in work.pieces if not self.at_home else ():
            let_go(piece.receipt)
        return real(self, work, now)

    monkeypatch.setattr(Task, "send", send)


def rows_of_a_moving_shard_are_forgotten(monkeypatch):
    real = Routes.pause

    def pause(self, shard):
        real(self, shard)
        for piece in self.waiting[shard]:
            let_go(piece.receipt)

    monkeypatch.setattr(Routes, "pause", pause)


def rows_of_a_lost_task_are_forgotten(monkeypatch):
    real = Recovery._put_back

    def put_back(self, task, now, died):
        for work in task.in_flight.values():
            for piece in work.pieces:
                let_go(piece.receipt)
        return real(self, task, now, died)

    monkeypatch.setattr(Recovery, "_put_back", put_back)


def the_fastest_input_counts(monkeypatch):
    def advance(self):
        self.time = max((time for time in self._times.values() if time is not None), default=None)

    monkeypatch.setattr(Inputs, "_update", advance)


def who_wakes_up_does_not_say_so(monkeypatch):
    """Nobody waits for an executor that was idle before its next watermark."""
    real = Watermarks.inputs_advanced

    def heard(self):
        before = self.now
        real(self)
        if before.idle and self.now == before._replace(idle=False):
            self.now = self._last = before

    monkeypatch.setattr(Watermarks, "inputs_advanced", heard)


def what_is_said_last_is_never_said(monkeypatch):
    monkeypatch.setattr(SourceClock, "end", lambda self: None)


def nothing_is_passed_on(monkeypatch):
    monkeypatch.setattr(Watermarks, "due", lambda self: [])


def the_slack_is_forgotten(monkeypatch):
    real = SourceClock.__init__

    def begin(self, origin, column, slack=0.0, **given):
        real(self, origin, column, 0.0, **given)

    monkeypatch.setattr(SourceClock, "__init__", begin)


MUTANTS = [
    a_watermark_overtakes_what_waits,
    a_watermark_waits_for_one_batch_of_many,
    rows_that_are_taken_count_as_done,
    rows_of_a_moving_shard_are_forgotten,
    rows_of_a_lost_task_are_forgotten,
    the_fastest_input_counts,
    who_wakes_up_does_not_say_so,
    what_is_said_last_is_never_said,
    nothing_is_passed_on,
    the_slack_is_forgotten,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_fault_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    found = next((error for seed in range(MOST_SEEDS) if (error := TimedScenario(seed).failure())), None)
    assert found is not None, f"{MOST_SEEDS} seeds found nothing"
    assert "the end of its history" in found.__notes__[0]
