from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.migration.instant import (
    ENDED,
    LETS_GO,
    TABLE,
    InstantAction,
    InstantEvent,
    InstantMove,
    InstantPhase,
)
from dask_elastic.vocab.errors import ProtocolError


def a_move(phase=InstantPhase.REQUESTED, has_left=False):
    return InstantMove(7, source=0, target=1, phase=phase, has_left=has_left)


@pytest.mark.parametrize("has_left", [False, True])
@pytest.mark.parametrize("phase", InstantPhase)
@pytest.mark.parametrize("event", InstantEvent)
def test_event_not_in_table_is_illegal_and_changes_nothing(has_left, phase, event):
    move = a_move(phase, has_left)
    entry = TABLE.get((phase, event, has_left or event in LETS_GO))
    if entry is not None:
        assert (move.handle(event), move.phase) == (entry[1], entry[0])
        return
    with pytest.raises(ProtocolError, match=r"instant move of shard 7 from task 0 to 1: .* is illegal in phase"):
        move.handle(event)
    assert (move.phase, move.has_left) == (phase, has_left)


@pytest.mark.parametrize(
    ("events", "actions"),
    [
        (["SOURCE_BUSY", "SOURCE_READY", "OPENED", "LABEL_RETURNED"], ["WAIT", "OPEN", "LEAVE", "MERGE"]),
        (["SOURCE_READY", "OPENED", "LABEL_RETURNED"], ["OPEN", "LEAVE", "MERGE"]),
        (["SOURCE_READY", "OPENED", "RECORD_ENTERED", "LABEL_RETURNED"], ["OPEN", "LEAVE", "HOLD", "MERGE"]),
        (["SOURCE_READY", "SOURCE_LOST", "OPENED"], ["OPEN", "WAIT", "MERGE"]),
        (["SOURCE_BUSY", "CUT_DUE"], ["WAIT", "CANCEL"]),
    ],
)
def test_move_takes_fewest_steps(events, actions):
    move = a_move()
    assert [move.handle(InstantEvent[event]).name for event in events] == actions
    assert move.phase in ENDED


def test_refused_loss_of_target_keeps_the_target():
    move = a_move(InstantPhase.ARRIVED)
    with pytest.raises(ProtocolError, match="'target lost' is illegal"):
        move.replace_target(5)
    assert move.target == 1


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_any_legal_sequence_merges_once_and_only_when_source_has_let_go(data):
    move, actions, let_go = a_move(), [], False
    for _ in range(20):
        if move.phase in ENDED:
            break
        legal = [
            event for phase, event, left in TABLE if phase is move.phase and left is (move.has_left or event in LETS_GO)
        ]
        # A source lets go once.
        event = data.draw(st.sampled_from([one for one in legal if not (let_go and one in LETS_GO)]))
        let_go |= event in LETS_GO
        actions.append(move.handle(event))
        if actions[-1] in (InstantAction.MERGE, InstantAction.INSTALL):
            assert let_go, "the partials are not complete"
    assert actions.count(InstantAction.MERGE) == (move.phase is InstantPhase.ARRIVED)
    assert (InstantAction.CANCEL in actions) == (move.phase is InstantPhase.CANCELLED)
    assert actions.count(InstantAction.LEAVE) + actions.count(InstantAction.RECALL) <= 1, "two labels"


def test_ended_move_takes_no_event_and_every_phase_is_reached():
    assert not [row for row in TABLE if row[0] in ENDED]
    assert {phase for phase, _ in TABLE.values()} == {*InstantPhase} - {InstantPhase.REQUESTED}
