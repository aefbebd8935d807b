"""Groups leave an executor when its fence has come back from all nodes that get its outputs, or the job has ended."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from dask_elastic.executor.groups.copied_groups import CopiedGroups
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.runtime.protocol.group_calls import CopyGroups, ForgetGroups, HoldGroups
from dask_elastic.runtime.transport.credit import Aborted
from dask_elastic.runtime.worker.groups.group_moves import GroupMoves
from dask_elastic.runtime.worker.groups.group_threads import GroupThreads
from dask_elastic.runtime.worker.groups.local_move import LocalMove, Share
from dask_elastic.vocab.errors import JobEnded, MoveRefused, NodeLost, ProtocolError, UserCodeError
from dask_elastic.vocab.identity import ExecutorId

GIVES = ExecutorId("op", 0)
OTHER = ExecutorId("op", 1)


class Peer:
    """Keeps what is sent."""

    def __init__(self, sent, address):
        self.sent, self.address = sent, address

    def __getattr__(self, name):
        return lambda generation, *arguments: self.sent.append((name, self.address, *arguments))


@pytest.fixture
def moves():
    """The moves of a job on the node 0 of three, two of which have homes; an executor here takes part in one."""
    sent = []
    tier = SimpleNamespace(
        settled=frozenset((0, 1, 2)), node_of=lambda executor: executor.index, groups_of=lambda operator: None
    )
    spec = SimpleNamespace(job="job", generation_id=("job", 1), nodes=("a", "b", "c"))
    part = SimpleNamespace(
        members=SimpleNamespace(node=0, tier=tier, spec=spec), threads=SimpleNamespace(ended=False), homes={}, sent=sent
    )
    made = GroupMoves(part, SimpleNamespace(peer=lambda address: Peer(sent, address)))
    made._move = LocalMove("op", 4, False, {GIVES: Share((), {})})
    made.part = part
    return made


def fenced(moves):
    """Begin to send a fence; returns the thread that waits and what it ended with."""
    ended = []

    def fence():
        try:
            moves.send_fence(GIVES, 4)
            moves.await_fence(GIVES, 4)
            ended.append("passed")
        except Aborted:
            ended.append("aborted")

    thread = threading.Thread(target=fence)
    thread.start()
    return thread, ended


def test_fence_passes_when_the_last_node_has_confirmed_it(moves):
    thread, ended = fenced(moves)
    pause = threading.Event()
    while len(moves.part.sent) < 2:
        pause.wait(0.001)
    assert moves.part.sent == [("send_group_fence", address, GIVES, 4) for address in ("b", "c")]
    moves.fence_passed(GIVES, 4, 2)
    thread.join(0.05)
    assert thread.is_alive(), "one node has not confirmed"
    moves.fence_passed(GIVES, 4, 1)
    thread.join(100)
    assert ended == ["passed"]


def test_fence_is_aborted_with_the_job(moves):
    waited = moves._move.wait_for_exchanged()
    thread, ended = fenced(moves)
    moves.part.threads.ended = True
    moves.abort()
    thread.join(100)
    assert ended == ["aborted"]
    with pytest.raises(JobEnded, match="job 'job' ended while groups of 'op' moved"):
        waited.result(100)


@pytest.mark.parametrize(
    ("error", "kind"), [(UserCodeError("op", "ValueError: 7"), UserCodeError), (OSError("no room"), NodeLost)]
)
def test_error_of_user_code_that_runs_when_groups_arrive_is_that_of_the_job(moves, error, kind):
    """A job with checkpoints used to restart, and others to fail, as if a worker had been lost."""
    errors = []

    def receive_groups(handed):
        # Tasks of the executor process here what it has held for these groups.
        raise error

    moves.part.fail = errors.append
    home = moves.part.homes[GIVES] = object.__new__(GroupThreads)
    home.receive_groups = receive_groups
    with pytest.raises(JobEnded):
        moves._install(GIVES, SimpleNamespace(version=4, nbytes=0))
    assert [type(one) for one in errors] == [kind]
    assert str(error) in str(errors[0])


def test_node_confirms_a_fence_to_the_home_of_the_executor(moves):
    moves.pass_fence(OTHER, 4)
    assert moves.part.sent == [("send_group_fence_passed", "b", OTHER, 4, 0)]


def test_reports_of_another_move_are_refused(moves):
    for report in (moves.drained, moves.exchanged):
        with pytest.raises(ProtocolError, match="takes no part in a move of groups of 'op' to 3"):
            report(GIVES, 3)
    with pytest.raises(MoveRefused, match="key groups of 'op' do not move"):
        moves.hold(HoldGroups("job", 1, "op", 5, {0: 1}, drains=False))


def test_groups_are_held_when_all_executors_hold_them(moves):
    moves._move = LocalMove("op", 4, False, {GIVES: Share((), {0: 1}), OTHER: Share((0,), {})})
    waited = moves._move.wait_for_held()
    moves.held(GIVES, 4)
    assert not waited.done()
    moves.held(OTHER, 4)
    assert waited.result(100).pause == 0.0


def test_wait_for_held_groups_ends_when_the_move_is_cancelled(moves):
    waited = moves._move.wait_for_held()
    moves.forget(ForgetGroups("job", 1, "op", 4))
    with pytest.raises(MoveRefused, match="to version 4 is cancelled"):
        waited.result(100)
    # A task may do what it had taken after that.
    moves.held(GIVES, 4)


@pytest.mark.parametrize("late", [("op", 3), ("other", 4)])
def test_cancellation_that_comes_late_leaves_the_next_move_alone(moves, late):
    move = moves._move
    waited = move.wait_for_held()
    moves.forget(ForgetGroups("job", 1, *late))
    assert moves._move is move
    moves.held(GIVES, 4)
    assert waited.result(100).pause == 0.0


def test_answers_of_a_cancelled_copy_end_beside_those_of_the_next_one(moves):
    old, new = moves._awaited(GIVES), moves._awaited(GIVES)
    old.__enter__()
    with new as answers:
        old.__exit__(None, None, None)
        assert moves._answers == {GIVES: answers}
    assert moves._answers == {}


def test_copy_for_an_executor_here_ends_with_the_job(moves):
    moves.part.threads.ended = True
    with pytest.raises(Aborted):
        moves.send_copied(GIVES, 0, CopiedGroups(4, 0, (), 0, ()))


@pytest.mark.parametrize(
    "call", [CopyGroups("job", 1, "op", 5, {0: 1}), HoldGroups("job", 1, "op", 5, {0: 1}, drains=True)]
)
def test_call_of_a_move_that_comes_behind_its_cancellation_is_refused(moves, call):
    moves.part.members.tier.groups_of = lambda operator: GroupTable.of_owners((0, 1), (0, 1))
    moves.forget(ForgetGroups("job", 1, "op", 5))
    with pytest.raises(MoveRefused, match="the move of groups of 'op' to version 5 is cancelled"):
        (moves.copy if isinstance(call, CopyGroups) else moves.hold)(call)
    assert moves._move.version == 4, "the move in progress goes on"
