"""A cluster that shrinks step by step, against a scheduler that answers what the test tells it to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

import dask_elastic as de
from dask_elastic.runtime.client import elastic_adaptive
from dask_elastic.runtime.protocol.calls import HOSTED, answer_codec, read_call
from dask_elastic.runtime.protocol.cluster_calls import ClusterNeed, Keep, NeedOfCluster
from dask_elastic.runtime.protocol.job_calls import Retire
from dask_elastic.runtime.protocol.remote_errors import dump_error
from dask_elastic.vocab.errors import PlanningError

KINDS = {kind.operation: kind for kind in (Keep, NeedOfCluster, Retire)}


class FakeCluster:
    """A cluster and its scheduler: three workers of two slots, which jobs need as far as the test says.

    Attributes
    ----------
    slots : float
        Slots that jobs need.
    calls : list of Call
        What the scheduler was asked, except for what jobs need.
    on_retire : list of callable
        Called with each retirement, one after the other; may raise.
    closed : list of str
        The workers that were closed.
    restarting : list of str
        The addresses of those that jobs leave by a restart.
    retired : set of str
        The names of those that get no more work.
    """

    def __init__(self):
        self.plan = self.requested = self.observed = {"a", "b", "c"}
        self.slots, self.calls, self.on_retire, self.closed, self.restarting = 1.0, [], [], [], []
        self.retired = set()
        self.loop = SimpleNamespace(add_callback=lambda function: None)
        self.scheduler_comm = self

    def __getattr__(self, operation):
        if operation not in KINDS:
            raise AttributeError(operation)

        async def answer(**message):
            kind = KINDS[operation]
            call = read_call(kind, message)
            try:
                answer = await self._answer(call)
            except PlanningError as error:
                return {"error": dump_error(error)}
            encode = answer_codec(kind).encode
            return {"answer": answer if encode is None else encode(answer)}

        return answer

    async def _answer(self, call):
        if isinstance(call, NeedOfCluster):
            workers = tuple((f"tcp://{name}", name) for name in sorted(self.plan))
            retired = tuple(pair for pair in workers if pair[1] in self.retired)
            return ClusterNeed(self.slots, 0, int(self.slots > 0), 2, workers, tuple(self.restarting), retired)
        self.calls.append(call)
        if isinstance(call, Retire | Keep):
            named = {address.removeprefix("tcp://") for address in call.workers}
            self.retired = self.retired | named if isinstance(call, Retire) else self.retired - named
        if isinstance(call, Retire) and self.on_retire:
            await self.on_retire.pop(0)()
        return None

    async def get_metadata(self, keys, default):
        return "1.0" if keys == [HOSTED] else default

    async def retire_workers(self, names, **options):
        self.closed += names

    def scale_down(self, names):
        self.plan -= set(names)
        self.retired -= set(names)


@pytest.fixture
def adaptive():
    """Return a function that runs a test with a fake cluster and its adaptive object."""

    def run(test):
        async def with_cluster():
            cluster = FakeCluster()
            made = de.ElasticAdaptive(cluster, interval="1 hour", cooldown=0, minimum=1, maximum=3)
            made.interval = 0.005
            await asyncio.wait_for(test(cluster, made), 100)

        asyncio.run(with_cluster())

    return run


async def fails():
    raise OSError("the connection to the scheduler was lost")


def test_workers_are_emptied_and_closed_one_by_one(adaptive):
    async def test(cluster, made):
        assert await made.safe_target() == 1
        await made.scale_down(["a", "b"])
        assert [type(call) for call in cluster.calls] == [Retire, Retire]
        assert (cluster.closed, cluster.plan) == (["a", "b"], {"c"})
        await made.safe_target()
        assert len(cluster.calls) == 2, "nothing is left to be kept"

    adaptive(test)


def test_worker_whose_retirement_lost_its_connection_is_kept_by_the_next_step(adaptive):
    async def test(cluster, made):
        await made.safe_target()
        cluster.on_retire = [fails]
        with pytest.raises(OSError, match="connection to the scheduler"):
            await made.scale_down(["a", "b"])
        assert cluster.closed == []
        await made.safe_target()
        assert cluster.calls[-1] == Keep(("tcp://a",))
        await made.safe_target()
        assert cluster.calls.count(Keep(("tcp://a",))) == 1

    adaptive(test)


def test_worker_that_could_not_be_closed_is_kept(adaptive, monkeypatch):
    async def test(cluster, made):
        await made.safe_target()
        monkeypatch.setattr(cluster, "retire_workers", lambda **given: fails(), raising=False)
        with pytest.raises(OSError, match="connection to the scheduler"):
            await made.scale_down(["a"])
        await made.safe_target()
        assert cluster.calls[-1] == Keep(("tcp://a",))

    adaptive(test)


def test_next_worker_is_not_emptied_once_workers_are_needed_again(adaptive):
    async def test(cluster, made):
        await made.safe_target()
        blocked = asyncio.Event()

        async def load_returns():
            cluster.slots = 6.0
            await blocked.wait()

        cluster.on_retire = [load_returns]
        await made.scale_down(["a", "b"])
        assert [type(call) for call in cluster.calls] == [Retire, Keep]
        assert cluster.closed == []

    adaptive(test)


def test_nothing_is_emptied_if_load_returned_before_the_first_step(adaptive):
    async def test(cluster, made):
        await made.safe_target()
        cluster.slots = 6.0
        await made.scale_down(["a", "b"])
        assert (cluster.calls, cluster.closed) == ([], [])

    adaptive(test)


def test_workers_that_jobs_leave_by_a_restart_are_emptied_together_and_last(adaptive):
    async def test(cluster, made):
        cluster.plan = cluster.requested = cluster.observed = {"a", "b", "c", "d"}
        cluster.restarting = ["tcp://a", "tcp://c"]
        await made.safe_target()
        await made.scale_down(["a", "b", "c"])
        assert [call.workers for call in cluster.calls] == [("tcp://b",), ("tcp://a", "tcp://c")]
        assert (cluster.closed, cluster.plan) == (["b", "a", "c"], {"d"})

    adaptive(test)


def test_no_more_workers_are_emptied_together_than_can_be_spared(adaptive):
    async def test(cluster, made):
        cluster.restarting, cluster.slots = ["tcp://a", "tcp://b"], 3.0
        await made.safe_target()
        await made.scale_down(["a", "b"])
        assert [call.workers for call in cluster.calls] == [("tcp://a",)]
        assert cluster.plan == {"b", "c"}

    adaptive(test)


def test_workers_that_are_emptied_together_stay_together_if_one_is_needed_again(adaptive):
    async def test(cluster, made):
        cluster.restarting = ["tcp://a", "tcp://b"]
        await made.safe_target()
        blocked = asyncio.Event()

        async def load_returns():
            # Enough for two workers of three.
            cluster.slots = 3.0
            await blocked.wait()

        cluster.on_retire = [load_returns]
        await made.scale_down(["a", "b"])
        assert [(type(call), call.workers) for call in cluster.calls] == [
            (Retire, ("tcp://a", "tcp://b")),
            (Keep, ("tcp://a", "tcp://b")),
        ]
        assert cluster.closed == []

    adaptive(test)


def test_worker_that_cannot_be_emptied_is_kept_and_the_next_one_leaves(adaptive):
    async def test(cluster, made):
        await made.safe_target()

        async def refuses():
            raise PlanningError("worker tcp://a cannot be drained")

        cluster.on_retire = [refuses]
        await made.scale_down(["a", "b"])
        assert [type(call) for call in cluster.calls] == [Retire, Keep, Retire]
        assert cluster.closed == ["b"]
        await made.safe_target()
        assert await made.workers_to_close(1) == ["c"]

    adaptive(test)


def test_worker_that_could_not_be_emptied_is_tried_again_and_not_remembered(adaptive, monkeypatch):
    monkeypatch.setattr(elastic_adaptive, "FAILED_SECONDS", 0.0)

    async def test(cluster, made):
        await made.safe_target()

        async def refuses():
            raise PlanningError("worker tcp://a cannot be drained")

        cluster.on_retire = [refuses]
        await made.scale_down(["a"])
        assert await made.workers_to_close(1) == ["a", "b"]
        assert made._failed == {}

    adaptive(test)


def test_retired_worker_is_replaced_and_leaves_first_when_fewer_are_needed(adaptive):
    async def test(cluster, made):
        cluster.slots, cluster.plan = 4.0, {"a", "b"}
        assert await made.safe_target() == 2
        cluster.retired.add("b")
        assert await made.safe_target() == 3, "jobs have one worker, and need two"
        cluster.plan = {"a", "b", "c"}
        assert await made.safe_target() == 3
        cluster.slots = 1.0
        assert await made.safe_target() == 2
        assert not [call for call in cluster.calls if isinstance(call, Keep)]

    adaptive(test)


def test_retired_worker_does_not_serve_the_first_job_and_is_not_needed_without_jobs(adaptive):
    async def test(cluster, made):
        cluster.slots, cluster.plan, cluster.retired = 0.01, {"a"}, {"a"}
        assert await made.safe_target() == 2
        cluster.slots = 0.0
        assert await made.safe_target() == made.minimum

    adaptive(test)


def test_worker_that_was_retired_before_stays_retired_when_it_is_needed_again(adaptive):
    async def test(cluster, made):
        cluster.retired.add("a")
        await made.safe_target()

        async def hangs():
            cluster.slots = 6.0
            await asyncio.Event().wait()

        cluster.on_retire = [hangs]
        await made.scale_down(["a"])
        assert (cluster.closed, cluster.retired) == ([], {"a"})
        cluster.slots = 1.0
        await made.safe_target()
        cluster.on_retire = [fails]
        with pytest.raises(OSError, match="connection to the scheduler"):
            await made.scale_down(["a"])
        await made.safe_target()
        assert cluster.retired == {"a"}

    adaptive(test)
