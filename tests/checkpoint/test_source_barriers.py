"""The barriers of a source instance: what is sent behind which one, whatever order the calls arrive in."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from dask_elastic.runtime.protocol.checkpoint_parts import SourcePosition
from dask_elastic.runtime.protocol.job_spec import CheckpointPlan
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.part_checkpoints import PartCheckpoints
from dask_elastic.runtime.worker.sources.source_barriers import SourceBarriers
from dask_elastic.vocab.identity import ExecutorId

SOURCE = ExecutorId("rows", 0)
SECONDS = 100


class Instance:
    """A source instance that sends what is due when it is asked to."""

    def __init__(self):
        self.sent: list[int] = []
        self.reached: list[tuple[int, object]] = []
        self.job_ended = False
        self.changed = threading.Condition()
        self.barriers = SourceBarriers(
            SOURCE,
            self.emit,
            lambda checkpoint, instance, position: self.reached.append((checkpoint, position.offset)),
            lambda: SourcePosition("midst"),
            lambda: SourcePosition("end"),
            lambda: self.job_ended,
        )

    def emit(self, barrier):
        assert barrier.origin == SOURCE
        with self.changed:
            self.sent.append(barrier.checkpoint)
            self.changed.notify()

    def begin_sending(self):
        self.error: BaseException | None = None

        def send():
            try:
                self.barriers.send_due()
            except Aborted as error:
                self.error = error

        self.thread = threading.Thread(target=send, daemon=True)
        self.thread.start()

    def has_sent(self, *checkpoints):
        with self.changed:
            return self.changed.wait_for(lambda: self.sent == [*checkpoints], SECONDS)

    def continues(self):
        self.thread.join(SECONDS)
        return not self.thread.is_alive()


@pytest.fixture
def instance():
    made = Instance()
    yield made
    made.job_ended = True
    made.barriers.wake()


def test_instance_halts_behind_the_barrier_until_it_may_continue(instance):
    assert instance.barriers.begin(3, halts=True)
    instance.begin_sending()
    assert instance.has_sent(3)
    assert instance.barriers.begin(4, halts=False)
    assert instance.has_sent(3, 4)
    assert instance.thread.is_alive()
    instance.barriers.go_on(2)
    instance.barriers.go_on(3)
    assert instance.continues()
    assert instance.reached == [(3, "midst"), (4, "midst")]


def test_instance_continues_with_a_later_checkpoint_for_which_nothing_halts(instance, tmp_path):
    """The call that ends the halt may fail, and is not repeated."""
    released, ticking = [], []
    source = SimpleNamespace(
        barriers=instance.barriers,
        begin_checkpoint=instance.barriers.begin,
        spool=SimpleNamespace(release=released.append),
    )
    home = SimpleNamespace(begin_checkpoint=lambda number, halts: None, go_on=ticking.append)
    here = SimpleNamespace(sources={SOURCE: source}, homes={ExecutorId("op", 0): home}, sinks={})
    spec = SimpleNamespace(summaries=(), homes={}, generation_id=("job", 1))
    threads = SimpleNamespace(start=lambda name, work: None)
    part = PartCheckpoints(spec, CheckpointPlan(str(tmp_path), 0, 0), threads, None, here)
    part.begin(3, halts=True)
    instance.begin_sending()
    assert instance.has_sent(3)
    part.begin(4, halts=True)
    assert instance.has_sent(3, 4)
    assert instance.thread.is_alive()
    part.begin(5, halts=False)
    assert instance.continues()
    instance.barriers.send_due()
    assert instance.sent == [3, 4, 5]
    assert (released, ticking) == ([5], [5])


def test_barrier_of_a_checkpoint_that_was_given_up_before_does_not_halt(instance):
    instance.barriers.go_on(5)
    instance.barriers.begin(5, halts=True)
    instance.barriers.send_due()
    assert instance.sent == [5]


def test_instance_that_halts_sends_nothing_when_its_job_ends(instance):
    instance.barriers.begin(1, halts=True)
    instance.begin_sending()
    assert instance.has_sent(1)
    instance.job_ended = True
    instance.barriers.wake()
    assert instance.continues()
    assert isinstance(instance.error, Aborted)


def test_instance_that_has_ended_notes_its_last_position(instance):
    instance.barriers.begin(1, halts=True)
    instance.barriers.end()
    assert not instance.barriers.begin(2, halts=True)
    assert instance.reached == [(1, "end"), (2, "end")]
    assert instance.sent == []
