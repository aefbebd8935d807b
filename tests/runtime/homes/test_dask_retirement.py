"""Calls of Dask's own method that retires workers: jobs leave first, and what they cannot leave is left out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from dask_elastic_plugins import retirement
from dask_elastic_plugins.retirement import DaskRetirement


class FakeScheduler:
    """A scheduler that retires any worker, except for those that it holds.

    Attributes
    ----------
    retired : list of (list of str, dict)
        The workers and the options of each call.
    """

    def __init__(self):
        self.workers = {f"tcp://{name}": SimpleNamespace(name=name) for name in ("a", "b", 3)}
        self.handlers = {"retire_workers": self.retire_workers}
        self.retired, self.held = [], set()

    async def retire_workers(self, workers=None, *, names=None, stimulus_id=None, **options):
        self.retired.append((workers, options))
        if "fails" in self.held:
            raise OSError("the connection was lost")
        return {address: {} for address in workers or names if address not in self.held}

    def workers_to_close(self, n=0):
        return list(self.workers)[:n]


class FakeRetirement:
    """Jobs that leave all workers but one."""

    def __init__(self):
        self.asked, self.kept, self.refused = [], [], {"tcp://b": "it hosts rows[0] of job 'job'."}

    async def vacate(self, addresses):
        self.asked.append(list(addresses))
        return {address: why for address, why in self.refused.items() if address in addresses}

    def keep(self, addresses):
        self.kept += addresses


@pytest.fixture
def made():
    """A scheduler with a job, its retirement, and what stands before Dask's method."""
    scheduler, retirement = FakeScheduler(), FakeRetirement()
    coordinator = SimpleNamespace(running=["job"], retirement=retirement)
    before = DaskRetirement(scheduler, coordinator)
    before.install()
    return SimpleNamespace(scheduler=scheduler, retirement=retirement, coordinator=coordinator, before=before)


def call(made, **given):
    return asyncio.run(made.scheduler.handlers["retire_workers"](**given))


def test_worker_that_jobs_cannot_leave_is_not_retired(made, caplog):
    assert list(call(made, workers=["tcp://a", "tcp://b"], close_workers=True)) == ["tcp://a"]
    assert made.scheduler.retired == [(["tcp://a"], {"close_workers": True})]
    assert "Dask retires worker tcp://b, which stays: it hosts rows[0] of job 'job'." in caplog.text
    assert call(made, workers=["tcp://b"]) == {}
    assert len(made.scheduler.retired) == 1


def test_worker_that_stays_while_the_program_ends_is_no_warning(made, caplog, monkeypatch):
    monkeypatch.setattr(retirement, "program_ends", lambda: True)
    assert call(made, workers=["tcp://b"]) == {}
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_worker_that_closes_by_itself_retires_anyway(made):
    found = call(made, workers=["tcp://b"], stimulus_id="worker-close-gracefully-1.5", remove=True)
    assert list(found) == ["tcp://b"]
    assert made.retirement.asked == [["tcp://b"]]


@pytest.mark.parametrize("given", [{"names": ["a", 3]}, {"workers": ["a", 3]}, {"workers": ["tcp://a", "tcp://3"]}])
def test_workers_are_known_by_name_and_by_address(made, given):
    assert list(call(made, **given)) == ["tcp://a", "tcp://3"]
    assert made.retirement.asked == [["tcp://a", "tcp://3"]]


def test_unknown_worker_is_left_out(made):
    assert call(made, workers=["tcp://unknown"]) == {}


def test_dask_chooses_among_workers_when_none_is_named(made):
    assert list(call(made, n=1, close_workers=True)) == ["tcp://a"]
    assert made.scheduler.retired == [(["tcp://a"], {"close_workers": True})]


def test_worker_that_dask_does_not_retire_after_all_is_used_again(made):
    made.scheduler.held = {"tcp://a"}
    assert list(call(made, workers=["tcp://a", "tcp://3"])) == ["tcp://3"]
    assert made.retirement.kept == ["tcp://a"]
    made.scheduler.held = {"fails"}
    with pytest.raises(OSError, match="connection"):
        call(made, workers=["tcp://a"])
    assert made.retirement.kept == ["tcp://a", "tcp://a"]


def test_dask_retires_as_ever_without_jobs_and_after_uninstalling(made):
    made.coordinator.running = []
    assert list(call(made, workers=["tcp://b"])) == ["tcp://b"]
    assert made.retirement.asked == []
    made.coordinator.running = ["job"]
    assert made.scheduler.retire_workers == made.before.retire_workers
    made.before.uninstall()
    assert list(call(made, workers=["tcp://b"])) == ["tcp://b"]
    assert list(asyncio.run(made.scheduler.retire_workers(workers=["tcp://b"]))) == ["tcp://b"]
    assert made.retirement.asked == []
