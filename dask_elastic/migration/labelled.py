"""Labelled shard reassignment as a table of (state, event) -> (state, action).

Notes
-----
Elasticutor, section 3.2: routing of the shard is paused, a label follows the shard's last tuple through the source
task; once it is back every tuple before it is processed. Only then may the target own the shard. Where source and
target share a node nothing else is needed; a target on a remote node is installed from the primary copy first.

A lost task is a move without a label (section 3.1): what its source did is in the primary copy or is done again by the
target, so the label is not waited for. A lost target is replaced by another one, which is installed anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dask_elastic.vocab.errors import ProtocolError


class Phase(Enum):
    """Where a move stands."""

    LABELLED = "labelled"
    INSTALLING = "installing"
    ARRIVED = "arrived"


class MoveEvent(Enum):
    """What can happen to a move."""

    LABEL_RETURNED = "label returned"
    INSTALLED = "installed"
    SOURCE_LOST = "source lost"
    TARGET_LOST = "target lost"


class Action(Enum):
    """What the executor does next."""

    INSTALL = "send the primary copy to the target"
    GRANT = "tell the target that it owns what its node has"
    RESUME = "flip the table and release the waiting rows"
    WAIT = "wait for what is under way"


@dataclass(frozen=True)
class Route:
    """Between which kinds of node a shard moves."""

    same_node: bool
    target_at_home: bool

    @property
    def next_action(self) -> Action:
        """What follows the returned label."""
        if self.target_at_home:
            return Action.RESUME
        return Action.GRANT if self.same_node else Action.INSTALL


TABLE: dict[tuple[Phase, MoveEvent, Action], tuple[Phase, Action]] = {
    (Phase.LABELLED, MoveEvent.LABEL_RETURNED, Action.RESUME): (Phase.ARRIVED, Action.RESUME),
    (Phase.LABELLED, MoveEvent.LABEL_RETURNED, Action.GRANT): (Phase.INSTALLING, Action.GRANT),
    (Phase.LABELLED, MoveEvent.LABEL_RETURNED, Action.INSTALL): (Phase.INSTALLING, Action.INSTALL),
    (Phase.INSTALLING, MoveEvent.INSTALLED, Action.GRANT): (Phase.ARRIVED, Action.RESUME),
    (Phase.INSTALLING, MoveEvent.INSTALLED, Action.INSTALL): (Phase.ARRIVED, Action.RESUME),
    (Phase.LABELLED, MoveEvent.SOURCE_LOST, Action.RESUME): (Phase.ARRIVED, Action.RESUME),
    (Phase.LABELLED, MoveEvent.SOURCE_LOST, Action.INSTALL): (Phase.INSTALLING, Action.INSTALL),
    (Phase.LABELLED, MoveEvent.TARGET_LOST, Action.RESUME): (Phase.LABELLED, Action.WAIT),
    (Phase.LABELLED, MoveEvent.TARGET_LOST, Action.INSTALL): (Phase.LABELLED, Action.WAIT),
    (Phase.INSTALLING, MoveEvent.TARGET_LOST, Action.RESUME): (Phase.ARRIVED, Action.RESUME),
    (Phase.INSTALLING, MoveEvent.TARGET_LOST, Action.INSTALL): (Phase.INSTALLING, Action.INSTALL),
}
"""The whole protocol; what is not listed is illegal and changes nothing. After a loss the route is that to the target
which takes the place of the lost one; a task that shares its node with another is never lost alone."""


@dataclass
class LabelledMove:
    """One shard on its way from one task to another.

    Parameters
    ----------
    shard, source, target : int
        The shard and the two tasks.
    route : Route
        Whether the tasks share a node, and whether the target is at home.
    began : float
        When routing was paused, seconds.
    phase : Phase
        Where the move stands.
    recovers : bool
        Whether the source was lost.

    Examples
    --------
    >>> move = LabelledMove(7, source=0, target=1, route=Route(same_node=True, target_at_home=True), began=0.0)
    >>> move.handle(MoveEvent.LABEL_RETURNED)
    <Action.RESUME: 'flip the table and release the waiting rows'>
    >>> move.phase
    <Phase.ARRIVED: 'arrived'>
    """

    shard: int
    source: int
    target: int
    route: Route
    began: float
    phase: Phase = Phase.LABELLED
    recovers: bool = False

    def replace_target(self, target: int, at_home: bool) -> Action:
        """Head for another target, since the one before is lost, and return what to do.

        What the shard needs is sent to its node in any case: what is there may be what is left of another move.
        """
        self.target = target
        self.route = Route(same_node=False, target_at_home=at_home)
        return self.handle(MoveEvent.TARGET_LOST)

    def handle(self, event: MoveEvent) -> Action:
        """Take an event and return what to do.

        Raises
        ------
        ProtocolError
            If the event is illegal in this phase; the move is left as it was.
        """
        entry = TABLE.get((self.phase, event, self.route.next_action))
        if entry is None:
            raise ProtocolError(
                f"move of shard {self.shard} from task {self.source} to {self.target}: "
                f"{event.value!r} is illegal in phase {self.phase.value!r}"
            )
        self.phase, action = entry
        return action
