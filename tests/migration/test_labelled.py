from __future__ import annotations

from itertools import product

import pytest

from dask_elastic.migration.labelled import TABLE, Action, LabelledMove, MoveEvent, Phase, Route
from dask_elastic.vocab.errors import ProtocolError

LABEL, INSTALLED = MoveEvent.LABEL_RETURNED, MoveEvent.INSTALLED
ROUTES = [Route(same_node, at_home) for same_node, at_home in product([True, False], repeat=2)]


def a_move(route, phase=Phase.LABELLED):
    return LabelledMove(7, source=0, target=1, route=route, began=0.0, phase=phase)


@pytest.mark.parametrize(
    ("route", "events", "actions"),
    [
        (Route(same_node=True, target_at_home=True), [LABEL], [Action.RESUME]),
        (Route(same_node=False, target_at_home=True), [LABEL], [Action.RESUME]),
        (Route(same_node=True, target_at_home=False), [LABEL, INSTALLED], [Action.GRANT, Action.RESUME]),
        (Route(same_node=False, target_at_home=False), [LABEL, INSTALLED], [Action.INSTALL, Action.RESUME]),
    ],
)
def test_a_move_takes_the_shortest_way_between_its_nodes(route, events, actions):
    move = a_move(route)
    assert [move.handle(event) for event in events] == actions
    assert move.phase is Phase.ARRIVED


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", MoveEvent)
def test_what_is_not_in_the_table_is_illegal_and_changes_nothing(route, phase, event):
    move = a_move(route, phase)
    entry = TABLE.get((phase, event, route.next_action))
    if entry is not None:
        assert (move.handle(event), move.phase) == (entry[1], entry[0])
        return
    with pytest.raises(ProtocolError, match=r"move of shard 7 from task 0 to 1: .* is illegal in phase"):
        move.handle(event)
    assert move.phase is phase


def test_every_move_that_began_ends_with_rows_released():
    for route in ROUTES:
        move = a_move(route)
        taken = [move.handle(LABEL)]
        if move.phase is Phase.INSTALLING:
            taken.append(move.handle(INSTALLED))
        assert taken[-1] is Action.RESUME
