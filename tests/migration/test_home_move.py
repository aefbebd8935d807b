from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.migration.home_move import ENDED, TABLE, HomeAction, HomeEvent, HomeMove, HomePhase
from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId

EXECUTOR = ExecutorId("per_key", 1)


def a_move(phase=HomePhase.REQUESTED):
    return HomeMove(EXECUTOR, source=0, target=2, phase=phase)


@pytest.mark.parametrize("phase", HomePhase)
@pytest.mark.parametrize("event", HomeEvent)
def test_event_not_in_table_is_illegal_and_changes_nothing(phase, event):
    move = a_move(phase)
    entry = TABLE.get((phase, event))
    if entry is not None:
        assert (move.handle(event), move.phase) == (entry[1], entry[0])
        return
    with pytest.raises(ProtocolError, match=r"home of per_key\[1\] from node 0 to 2: .* is illegal in phase"):
        move.handle(event)
    assert move.phase is phase


def test_fence_hands_over_only_when_it_has_come_back_from_every_node():
    move = a_move(HomePhase.FENCING)
    move.fence([0, 3, 5])
    assert [move.passed(node) for node in (3, 5, 0)] == [HomeAction.WAIT, HomeAction.WAIT, HomeAction.HAND_OVER]


def test_fence_that_is_not_awaited_raises():
    move = a_move(HomePhase.FENCING)
    move.fence([0, 3])
    move.passed(3)
    with pytest.raises(ProtocolError, match="from node 3, but none is awaited"):
        move.passed(3)
    assert move.phase is HomePhase.FENCING


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_legal_sequence_hands_over_once_and_only_behind_end_marks_and_fences(data):
    move, actions = a_move(), []
    for _ in range(20):
        if move.has_ended:
            break
        legal = [event for phase, event in TABLE if phase is move.phase]
        event = data.draw(st.sampled_from(legal))
        switched = HomeAction.SWITCH in actions
        actions.append(move.handle(event))
        if event is HomeEvent.HOME_LOST:
            assert actions[-1] is (HomeAction.RESTART if switched else HomeAction.CANCEL)
    order = [action for action in HomeAction if action in actions and action is not HomeAction.WAIT]
    assert [action for action in actions if action is not HomeAction.WAIT] == order, "an action came early or twice"
    if HomeAction.HAND_OVER in actions:
        assert {HomeAction.PREPARE, HomeAction.SWITCH, HomeAction.FENCE} <= {*actions}
    assert (HomeAction.CLOSE in actions) == (move.phase is HomePhase.ARRIVED)


def test_ended_move_takes_no_event_and_every_phase_is_reached():
    assert not [row for row in TABLE if row[0] in ENDED]
    assert {phase for phase, _ in TABLE.values()} == {*HomePhase} - {HomePhase.REQUESTED}
