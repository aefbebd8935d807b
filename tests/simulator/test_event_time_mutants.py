"""Mutants of the watermark protocol: the checks must find each injected fault."""

from __future__ import annotations

import pytest
from timed_scenario import TimedScenario

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.source_clock import SourceClock
from dask_elastic.executor.control_records.watermarks import Watermarks
from dask_elastic.executor.piece import Receipt
from dask_elastic.executor.recovery import Recovery
from dask_elastic.executor.routes import Routes
from dask_elastic.executor.task import Task

MOST_SEEDS = 100


def settle_now(receipt: Receipt) -> None:
    """Count a batch as settled although its rows are not."""
    Watermarks.settled(receipt.span)
    receipt.span = None


def watermark_overtakes_waiting_rows(monkeypatch):
    """A watermark is forwarded as soon as it has arrived."""
    monkeypatch.setattr(Watermarks, "arrived", lambda self: None)


def watermark_waits_for_one_batch_only(monkeypatch):
    def settled(span):
        if span is not None:
            span.open = 0

    monkeypatch.setattr(Watermarks, "settled", staticmethod(settled))


def taken_rows_count_as_settled(monkeypatch):
    """Rows sent to a remote task count before it has answered."""
    real = Task.send

    def send(self, work, now):
        for piece in work.pieces if not self.at_home else ():
            settle_now(piece.receipt)
        return real(self, work, now)

    monkeypatch.setattr(Task, "send", send)


def rows_of_moving_shard_are_not_counted(monkeypatch):
    real = Routes.pause

    def pause(self, shard):
        real(self, shard)
        for piece in self.waiting[shard]:
            settle_now(piece.receipt)

    monkeypatch.setattr(Routes, "pause", pause)


def rows_of_lost_task_are_not_counted(monkeypatch):
    real = Recovery._put_back

    def put_back(self, task, now, died):
        for work in task.in_flight.values():
            for piece in work.pieces:
                settle_now(piece.receipt)
        return real(self, task, now, died)

    monkeypatch.setattr(Recovery, "_put_back", put_back)


def maximum_of_inputs_is_used(monkeypatch):
    def advance(self):
        self.time = max((time for time in self._times.values() if time is not None), default=None)

    monkeypatch.setattr(Inputs, "_update", advance)


def active_again_is_not_forwarded(monkeypatch):
    """An executor that becomes active again forwards this only with its next watermark."""
    real = Watermarks.inputs_advanced

    def inputs_advanced(self):
        before = self.now
        real(self)
        if before.idle and self.now == before._replace(idle=False):
            self.now = self._last = before

    monkeypatch.setattr(Watermarks, "inputs_advanced", inputs_advanced)


def last_watermark_is_not_sent(monkeypatch):
    monkeypatch.setattr(SourceClock, "end", lambda self: None)


def watermarks_are_not_forwarded(monkeypatch):
    monkeypatch.setattr(Watermarks, "due", lambda self: [])


def slack_is_ignored(monkeypatch):
    real = SourceClock.__init__

    def begin(self, origin, column, slack=0.0, **given):
        real(self, origin, column, 0.0, **given)

    monkeypatch.setattr(SourceClock, "__init__", begin)


MUTANTS = [
    watermark_overtakes_waiting_rows,
    watermark_waits_for_one_batch_only,
    taken_rows_count_as_settled,
    rows_of_moving_shard_are_not_counted,
    rows_of_lost_task_are_not_counted,
    maximum_of_inputs_is_used,
    active_again_is_not_forwarded,
    last_watermark_is_not_sent,
    watermarks_are_not_forwarded,
    slack_is_ignored,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_event_time_mutant_is_found(monkeypatch, mutate):
    mutate(monkeypatch)
    found = next((error for seed in range(MOST_SEEDS) if (error := TimedScenario(seed).failure())), None)
    assert found is not None, f"{MOST_SEEDS} seeds found nothing"
    assert "the end of its history" in found.__notes__[0]
