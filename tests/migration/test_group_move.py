from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.migration.group_move import (
    ENDED,
    PROGRESSIVE,
    SYNCHRONISED,
    TABLES,
    GroupAction,
    GroupEvent,
    GroupMove,
    GroupPhase,
)
from dask_elastic.vocab.errors import ProtocolError


def a_move(strategy=PROGRESSIVE, phase=GroupPhase.REQUESTED):
    return GroupMove("per_key", 1, {5: 1, 6: 1}, {5: 0, 6: 2}, strategy, phase)


@pytest.mark.parametrize("strategy", TABLES)
@pytest.mark.parametrize("phase", GroupPhase)
@pytest.mark.parametrize("event", GroupEvent)
def test_event_not_in_table_is_illegal_and_changes_nothing(strategy, phase, event):
    move = a_move(strategy, phase)
    entry = TABLES[strategy].get((phase, event))
    if entry is not None:
        assert (move.handle(event), move.phase) == (entry[1], entry[0])
        return
    with pytest.raises(ProtocolError, match=r"move of 2 groups of 'per_key' to version 1: .* is illegal in phase"):
        move.handle(event)
    assert move.phase is phase


@pytest.mark.parametrize(
    ("strategy", "actions"), [(PROGRESSIVE, "COPY HOLD SWITCH CLOSE"), (SYNCHRONISED, "HOLD PAUSE MOVE RESUME CLOSE")]
)
def test_actions_follow_when_all_have_answered(strategy, actions):
    move = a_move(strategy)
    taken = [move.handle(GroupEvent.STARTED)]
    while not move.has_ended:
        move.ask("abc")
        assert [move.answered("b"), move.answered("c")] == [None, None]
        taken.append(move.answered("a"))
    assert " ".join(action.name for action in taken) == actions


@pytest.mark.parametrize("phase", [GroupPhase.COPYING, GroupPhase.HOLDING])
def test_one_refusal_cancels_when_all_have_answered(phase):
    move = a_move(phase=phase)
    move.ask([0, 1])
    assert move.answered(0, refuses=True) is None
    assert move.answered(1) is GroupAction.CANCEL
    move.ask([0, 1])
    assert (move.answered(0), move.answered(1), move.phase) == (None, GroupAction.CLOSE, GroupPhase.CANCELLED)


def test_answer_that_is_not_awaited_raises():
    move = a_move(phase=GroupPhase.SWITCHING)
    move.ask([0])
    with pytest.raises(ProtocolError, match="1 has answered, but no answer is awaited"):
        move.answered(1)
    assert move.unanswered == {0}


@pytest.mark.parametrize("strategy", TABLES)
@pytest.mark.parametrize("phase", [GroupPhase.REQUESTED, GroupPhase.HOLDING, GroupPhase.CANCELLING])
def test_participants_that_are_left_forget_the_move_when_one_is_lost(strategy, phase):
    move = a_move(strategy, phase)
    move.ask([0, 1])
    assert move.handle(GroupEvent.LOST) is GroupAction.CANCEL
    move.ask([1])
    assert (move.answered(1), move.phase) == (GroupAction.CLOSE, GroupPhase.CANCELLED)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(TABLES)), st.data())
def test_lost_participant_cancels_before_the_switch_and_restarts_behind_it(strategy, data):
    move, actions = a_move(strategy), []
    while not move.has_ended:
        legal = sorted((event for phase, event in TABLES[strategy] if phase is move.phase), key=lambda one: one.name)
        event = data.draw(st.sampled_from(legal))
        switched = any(action in actions for action in (GroupAction.SWITCH, GroupAction.PAUSE))
        actions.append(move.handle(event))
        if event is GroupEvent.LOST:
            assert actions[-1] is (GroupAction.RESTART if switched else GroupAction.CANCEL)
    assert move.phase in ENDED
