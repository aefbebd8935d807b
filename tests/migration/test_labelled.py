from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_elastic.migration.labelled import (
    ENDED,
    NEEDS,
    PAUSED,
    TABLE,
    Action,
    LabelledMove,
    MoveEvent,
    Phase,
    Route,
)
from dask_elastic.vocab.errors import ProtocolError

LABEL, INSTALLED = MoveEvent.LABEL_RETURNED, MoveEvent.INSTALLED
ROUTES = [Route(same_node, at_home) for same_node, at_home in product([True, False], repeat=2)]


def a_move(route, phase=Phase.LABELLED):
    return LabelledMove(7, source=0, target=1, route=route, deadline=0.0, phase=phase)


@pytest.mark.parametrize(
    ("route", "events", "actions"),
    [
        (Route(same_node=True, target_at_home=True), [LABEL], [Action.RESUME]),
        (Route(same_node=False, target_at_home=True), [LABEL], [Action.RESUME]),
        (Route(same_node=True, target_at_home=False), [LABEL, INSTALLED], [Action.GRANT, Action.RESUME]),
        (Route(same_node=False, target_at_home=False), [LABEL, INSTALLED], [Action.INSTALL, Action.RESUME]),
    ],
)
def test_paused_move_takes_fewest_steps_between_its_nodes(route, events, actions):
    move = a_move(route)
    assert [move.handle(event) for event in events] == actions
    assert move.phase is Phase.ARRIVED


@pytest.mark.parametrize(
    ("events", "actions", "phase"),
    [
        (["SOURCE_IDLE"], ["LABEL"], "LABELLED"),
        (["DEADLINE_PASSED"], ["LABEL"], "LABELLED"),
        (["SOURCE_BUSY", "SOURCE_IDLE"], ["WAIT", "LABEL"], "LABELLED"),
        (["SOURCE_BUSY", "TARGET_DRAINING"], ["WAIT", "CANCEL"], "CANCELLED"),
        (["SOURCE_REMOTE", "FLUSH_ARRIVED", "DEADLINE_PASSED"], ["FLUSH", "WAIT", "LABEL"], "LABELLED"),
        (["SOURCE_REMOTE", "TARGET_LOST"], ["FLUSH", "CANCEL"], "CANCELLED"),
        (["SOURCE_REMOTE", "FLUSH_ARRIVED", "SOURCE_LOST"], ["FLUSH", "WAIT", "CANCEL"], "CANCELLED"),
        (["SOURCE_LOST", "INSTALLED"], ["INSTALL", "RESUME"], "ARRIVED"),
    ],
)
def test_requested_move_waits_flushes_and_pauses_in_order(events, actions, phase):
    move = a_move(Route(same_node=False, target_at_home=False), Phase.REQUESTED)
    assert [move.handle(MoveEvent[event]) for event in events] == [Action[action] for action in actions]
    assert move.phase is Phase[phase]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", MoveEvent)
def test_event_not_in_table_is_illegal_and_changes_nothing(route, phase, event):
    move = a_move(route, phase)
    entry = TABLE.get((phase, event, route.next_action))
    if entry is not None:
        assert (move.handle(event), move.phase) == (entry[1], entry[0])
        return
    with pytest.raises(ProtocolError, match=r"move of shard 7 from task 0 to 1: .* is illegal in phase"):
        move.handle(event)
    assert move.phase is phase


@pytest.mark.parametrize("phase", sorted({*Phase} - PAUSED, key=lambda phase: phase.value))
def test_target_of_unpaused_move_is_not_replaced(phase):
    move = a_move(Route(same_node=True, target_at_home=True), phase)
    with pytest.raises(ProtocolError, match="'target lost' is illegal"):
        move.replace_target(2, at_home=False)
    assert (move.target, move.route, move.phase) == (1, Route(same_node=True, target_at_home=True), phase)


def test_paused_move_ends_with_rows_released():
    for route in ROUTES:
        move = a_move(route)
        taken = [move.handle(LABEL)]
        if move.phase is Phase.INSTALLING:
            taken.append(move.handle(INSTALLED))
        assert taken[-1] is Action.RESUME


def legal(move):
    """Return the legal events, each with whether a new target is at home (None without a new target)."""
    events = [
        (event, None) for phase, event, needed in TABLE if (phase, needed) == (move.phase, move.route.next_action)
    ]
    if move.paused:
        events = [given for given in events if given[0] is not MoveEvent.TARGET_LOST]
        events += [(MoveEvent.TARGET_LOST, at_home) for at_home in (False, True)]
    return events


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(ROUTES), st.data())
def test_any_legal_sequence_pauses_once_and_releases_rows_iff_paused(route, data):
    move = a_move(route, Phase.REQUESTED)
    actions, let_go = [], False
    for _ in range(20):
        if move.phase in ENDED:
            break
        event, at_home = data.draw(st.sampled_from(legal(move)))
        let_go |= event in (LABEL, MoveEvent.SOURCE_LOST)
        action = move.handle(event) if at_home is None else move.replace_target(9, at_home)
        if action in NEEDS:
            assert let_go, "the target gets the shard before its source has let go of it"
        actions.append(action)
    assert actions.count(Action.LABEL) <= 1
    assert (Action.RESUME in actions) == (move.phase is Phase.ARRIVED)
    assert (Action.CANCEL in actions) == (move.phase is Phase.CANCELLED)
    assert not (Action.LABEL in actions and Action.CANCEL in actions)


def test_ended_move_takes_no_event():
    assert not [row for row in TABLE if row[0] in ENDED]
    assert {phase for phase, _ in TABLE.values()} == {*Phase} - {Phase.REQUESTED}
