"""Staging against a simple model: bytes are counted exactly, and a commit drops all attempts that were not chosen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dask_elastic.runtime.worker.buffers.staging import ABANDONED_SECONDS, Room, Staging
from dask_elastic.vocab.epoch import AttemptId
from dask_elastic.vocab.errors import HandoffError

LIMIT = 100
ATTEMPTS = [AttemptId("q", epoch, partition, name) for epoch in (0, 1) for partition in (0, 1) for name in "ab"]


class StagingMachine(RuleBasedStateMachine):
    """Chunks are numbered; the model holds lists of (number, bytes, spilled) by attempt."""

    def __init__(self):
        super().__init__()
        self.staging: Staging[int] = Staging(LIMIT)
        self.model: dict[AttemptId, list[tuple[int, int, bool]]] = {}
        self.finished: set[AttemptId] = set()
        self.sealed: set[AttemptId] = set()
        self.number = 0
        self.now = 0.0
        self.since: dict[AttemptId, float] = {}

    @rule(attempt=st.sampled_from(ATTEMPTS))
    def begin(self, attempt):
        if attempt in self.model:
            with pytest.raises(HandoffError):
                self.staging.begin(attempt, self.now)
        else:
            self.staging.begin(attempt, self.now)
            self.model[attempt] = []
            self.since[attempt] = self.now

    @rule(seconds=st.sampled_from([0.0, 1.0, ABANDONED_SECONDS]))
    def drop_abandoned(self, seconds):
        self.now += seconds
        old = [
            each for each in self.model if each not in self.sealed and self.now - self.since[each] > ABANDONED_SECONDS
        ]
        dropped = self.staging.drop_abandoned(self.now)
        assert sorted(dropped) == sorted(chunk[0] for each in old for chunk in self._forget(each))

    @rule(attempt=st.sampled_from(ATTEMPTS), nbytes=st.integers(1, 60))
    def add(self, attempt, nbytes):
        room = self.staging.room(nbytes)
        assert (room is Room.KEEP) == (self.staging.memory + nbytes <= LIMIT)
        waiting = any(not spilled for each in self.sealed for _, _, spilled in self.model[each])
        assert room is Room.KEEP or (room is Room.WAIT) == waiting
        if room is Room.WAIT:
            return
        if attempt not in self.model or attempt in self.finished:
            with pytest.raises(HandoffError):
                self.staging.add(attempt, -1, nbytes)
            return
        self.number += 1
        self.staging.add(attempt, self.number, nbytes, spilled=room is Room.SPILL)
        self.model[attempt].append((self.number, nbytes, room is Room.SPILL))

    @rule(attempt=st.sampled_from(ATTEMPTS))
    def finish(self, attempt):
        if attempt in self.model and attempt not in self.finished:
            self.staging.finish(attempt)
            self.finished.add(attempt)

    @rule(attempt=st.sampled_from(ATTEMPTS))
    def drop(self, attempt):
        if attempt not in self.sealed:
            assert self.staging.drop(attempt) == [chunk[0] for chunk in self._forget(attempt)]

    @rule(chosen=st.sets(st.sampled_from(ATTEMPTS), max_size=2), epoch=st.sampled_from([0, 1]))
    def seal(self, chosen, epoch):
        chosen = {each for each in chosen if each.epoch == epoch}
        if not chosen <= self.finished:
            before = self.staging.attempts
            with pytest.raises(HandoffError, match="are lost"):
                self.staging.seal("q", epoch, chosen)
            assert self.staging.attempts == before
            return
        self.sealed |= chosen
        others = [each for each in self.model if each.epoch <= epoch and each not in self.sealed]
        dropped = self.staging.seal("q", epoch, chosen)
        assert sorted(dropped) == sorted(chunk[0] for each in others for chunk in self._forget(each))

    @rule(epoch=st.sampled_from([0, 1]))
    def abort(self, epoch):
        others = [each for each in self.model if each.epoch == epoch and each not in self.sealed]
        dropped = self.staging.abort("q", epoch, self.sealed)
        assert sorted(dropped) == sorted(chunk[0] for each in others for chunk in self._forget(each))

    @precondition(lambda self: self.sealed)
    @rule(data=st.data())
    def take(self, data):
        attempt = data.draw(st.sampled_from(sorted(self.sealed)))
        chunk = self.staging.take(attempt)
        if self.model[attempt]:
            assert chunk is not None
            assert tuple(chunk) == self.model[attempt].pop(0)
        else:
            assert chunk is None
            self._forget(attempt)

    @rule(attempt=st.sampled_from(ATTEMPTS))
    def take_uncommitted(self, attempt):
        if attempt not in self.sealed:
            with pytest.raises(HandoffError):
                self.staging.take(attempt)

    @invariant()
    def bytes_are_counted(self):
        chunks = [chunk for chunks in self.model.values() for chunk in chunks]
        assert self.staging.memory == sum(nbytes for _, nbytes, spilled in chunks if not spilled) <= LIMIT
        assert self.staging.spilled == sum(nbytes for _, nbytes, spilled in chunks if spilled)
        assert self.staging.attempts == self.model.keys()

    def _forget(self, attempt):
        self.finished.discard(attempt)
        self.sealed.discard(attempt)
        return self.model.pop(attempt, [])


StagingMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestStaging = StagingMachine.TestCase


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 150), max_size=10))
def test_drop_all_drops_every_chunk(sizes):
    staging: Staging[int] = Staging(LIMIT)
    staging.begin(ATTEMPTS[0])
    for number, nbytes in enumerate(sizes):
        staging.add(ATTEMPTS[0], number, nbytes, spilled=staging.room(nbytes) is Room.SPILL)
    assert staging.drop_all() == list(range(len(sizes)))
    assert (staging.memory, staging.spilled, staging.attempts) == (0, 0, frozenset())
