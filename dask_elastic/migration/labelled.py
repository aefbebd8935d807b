"""Labelled shard move as a table of (phase, event, what the target needs) -> (phase, action).

Notes
-----
Elasticutor, section 3.2: routing of the shard is paused, and a label follows the shard's last tuple through the source
task. When the label has returned, the source has processed every tuple before it; only then may the target own the
shard. Between two tasks at home nothing is transferred; a target on another node is installed from the primary copy.

Before the pause a move may wait, so that the pause is short: a remote source first flushes the shard's dirty state, and
the label then brings only what changed since; a source with sub-batches in flight first finishes them, until a
deadline. Before the pause the shard's routing is unchanged, so a move that became pointless is cancelled.

When the source is lost (section 3.1) the shard moves without a label: what the source did is in the primary copy, or
the target replays it. When the target of a paused shard is lost, another target takes its place and is installed anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dask_elastic.vocab.errors import ProtocolError


class Phase(Enum):
    """Phase of a move."""

    REQUESTED = "requested"
    FLUSHING = "flushing"
    WAITING = "waiting"
    LABELLED = "labelled"
    INSTALLING = "installing"
    ARRIVED = "arrived"
    CANCELLED = "cancelled"


PAUSED = frozenset({Phase.LABELLED, Phase.INSTALLING})
"""The phases in which the shard's routing is paused."""

ENDED = frozenset({Phase.ARRIVED, Phase.CANCELLED})
"""The phases that a move never leaves."""


class MoveEvent(Enum):
    """An event of a move."""

    SOURCE_REMOTE = "source is remote"
    SOURCE_BUSY = "source is busy"
    FLUSH_ARRIVED = "flush arrived"
    SOURCE_IDLE = "source is idle"
    DEADLINE_PASSED = "deadline passed"
    TARGET_DRAINING = "target is draining"
    LABEL_RETURNED = "label returned"
    INSTALLED = "installed"
    SOURCE_LOST = "source lost"
    TARGET_LOST = "target lost"


class Action(Enum):
    """What the executor does next."""

    FLUSH = "request a flush of the shard's dirty state from the source"
    WAIT = "wait for the next event"
    LABEL = "pause the shard and send the label through the source; an idle source at home needs none"
    INSTALL = "send the primary copy to the target"
    GRANT = "tell the target that it owns the state that its node has"
    RESUME = "route the shard to the target and release the waiting rows"
    CANCEL = "end the move; its shard's routing was never changed"


@dataclass(frozen=True)
class Route:
    """The kinds of node between which a shard moves."""

    same_node: bool
    target_at_home: bool

    @property
    def next_action(self) -> Action:
        """What the target needs once the source has let go of the shard."""
        if self.target_at_home:
            return Action.RESUME
        return Action.GRANT if self.same_node else Action.INSTALL


NEEDS = (Action.RESUME, Action.GRANT, Action.INSTALL)
"""What a target may need: `Route.next_action`."""

Entry = tuple[Phase, Action]


def _rows(
    needs: tuple[Action, ...], rows: dict[tuple[Phase, MoveEvent], Entry]
) -> dict[tuple[Phase, MoveEvent, Action], Entry]:
    return {(phase, event, needed): entry for (phase, event), entry in rows.items() for needed in needs}


_BEFORE_THE_PAUSE = _rows(
    NEEDS,
    {
        (Phase.REQUESTED, MoveEvent.SOURCE_REMOTE): (Phase.FLUSHING, Action.FLUSH),
        (Phase.REQUESTED, MoveEvent.DEADLINE_PASSED): (Phase.LABELLED, Action.LABEL),
        (Phase.FLUSHING, MoveEvent.FLUSH_ARRIVED): (Phase.WAITING, Action.WAIT),
        (Phase.FLUSHING, MoveEvent.SOURCE_LOST): (Phase.CANCELLED, Action.CANCEL),
        (Phase.WAITING, MoveEvent.SOURCE_IDLE): (Phase.LABELLED, Action.LABEL),
        (Phase.WAITING, MoveEvent.DEADLINE_PASSED): (Phase.LABELLED, Action.LABEL),
        (Phase.WAITING, MoveEvent.TARGET_DRAINING): (Phase.CANCELLED, Action.CANCEL),
        (Phase.WAITING, MoveEvent.SOURCE_LOST): (Phase.CANCELLED, Action.CANCEL),
    },
)

_FROM_HOME = _rows(
    (Action.RESUME, Action.INSTALL),
    {
        (Phase.REQUESTED, MoveEvent.SOURCE_BUSY): (Phase.WAITING, Action.WAIT),
        (Phase.REQUESTED, MoveEvent.SOURCE_IDLE): (Phase.LABELLED, Action.LABEL),
    },
)

# The home is never lost, and a target on the source's node is lost together with the source.
_TO_A_LOST_TARGET = _rows(
    (Action.INSTALL,),
    {
        (Phase.FLUSHING, MoveEvent.TARGET_LOST): (Phase.CANCELLED, Action.CANCEL),
        (Phase.WAITING, MoveEvent.TARGET_LOST): (Phase.CANCELLED, Action.CANCEL),
    },
)

# An earlier move of the shard requested the flush and was then cancelled.
_LATE_FLUSH: dict[tuple[Phase, MoveEvent, Action], Entry] = {
    (phase, MoveEvent.FLUSH_ARRIVED, needed): (phase, Action.WAIT)
    for phase in (Phase.WAITING, Phase.LABELLED, Phase.INSTALLING)
    for needed in NEEDS
    if (phase, needed) != (Phase.INSTALLING, Action.RESUME)
}

TABLE: dict[tuple[Phase, MoveEvent, Action], Entry] = {
    **_BEFORE_THE_PAUSE,
    **_FROM_HOME,
    **_TO_A_LOST_TARGET,
    **_LATE_FLUSH,
    (Phase.LABELLED, MoveEvent.LABEL_RETURNED, Action.RESUME): (Phase.ARRIVED, Action.RESUME),
    (Phase.LABELLED, MoveEvent.LABEL_RETURNED, Action.GRANT): (Phase.INSTALLING, Action.GRANT),
    (Phase.LABELLED, MoveEvent.LABEL_RETURNED, Action.INSTALL): (Phase.INSTALLING, Action.INSTALL),
    (Phase.INSTALLING, MoveEvent.INSTALLED, Action.GRANT): (Phase.ARRIVED, Action.RESUME),
    (Phase.INSTALLING, MoveEvent.INSTALLED, Action.INSTALL): (Phase.ARRIVED, Action.RESUME),
    # The loss of a task is itself a request to move its shards, which are paused already and need no label.
    (Phase.REQUESTED, MoveEvent.SOURCE_LOST, Action.RESUME): (Phase.ARRIVED, Action.RESUME),
    (Phase.REQUESTED, MoveEvent.SOURCE_LOST, Action.INSTALL): (Phase.INSTALLING, Action.INSTALL),
    (Phase.LABELLED, MoveEvent.SOURCE_LOST, Action.RESUME): (Phase.ARRIVED, Action.RESUME),
    (Phase.LABELLED, MoveEvent.SOURCE_LOST, Action.INSTALL): (Phase.INSTALLING, Action.INSTALL),
    (Phase.LABELLED, MoveEvent.TARGET_LOST, Action.RESUME): (Phase.LABELLED, Action.WAIT),
    (Phase.LABELLED, MoveEvent.TARGET_LOST, Action.INSTALL): (Phase.LABELLED, Action.WAIT),
    (Phase.INSTALLING, MoveEvent.TARGET_LOST, Action.RESUME): (Phase.ARRIVED, Action.RESUME),
    (Phase.INSTALLING, MoveEvent.TARGET_LOST, Action.INSTALL): (Phase.INSTALLING, Action.INSTALL),
}
"""The whole protocol; an event that is not listed is illegal and changes nothing. Once the shard is paused, a lost
target is replaced, and the third part is what the new target needs: never `GRANT`, since nodes are lost as a whole."""


@dataclass
class LabelledMove:
    """The move of one shard from one task to another, from the request to its end.

    Parameters
    ----------
    shard, source, target : int
        The shard and the two tasks.
    route : Route
        Whether the tasks share a node, and whether the target is at home.
    deadline : float
        When the move stops waiting for its source to be idle, seconds.
    phase : Phase
        The move's phase.
    paused_at : float
        When routing was paused, seconds; 0 before.
    recovers : bool
        Whether the source was lost, so that the move is a recovery.

    Examples
    --------
    >>> move = LabelledMove(7, source=0, target=1, route=Route(same_node=True, target_at_home=True), deadline=0.05)
    >>> move.handle(MoveEvent.SOURCE_BUSY), move.handle(MoveEvent.SOURCE_IDLE).name, move.paused
    (<Action.WAIT: 'wait for the next event'>, 'LABEL', True)
    >>> move.handle(MoveEvent.LABEL_RETURNED)
    <Action.RESUME: 'route the shard to the target and release the waiting rows'>
    >>> move.phase
    <Phase.ARRIVED: 'arrived'>
    """

    shard: int
    source: int
    target: int
    route: Route
    deadline: float
    phase: Phase = Phase.REQUESTED
    paused_at: float = 0.0
    recovers: bool = False

    @property
    def paused(self) -> bool:
        """Whether the shard's routing is paused."""
        return self.phase in PAUSED

    def replace_target(self, target: int, at_home: bool) -> Action:
        """Take a new target for a paused shard in place of the lost one, and return what to do.

        The new target is always sent the primary copy: its node may still have state of an earlier move.

        Parameters
        ----------
        target : int
            The new target task.
        at_home : bool
            Whether that task is at home.

        Returns
        -------
        Action
            What the executor does next.

        Raises
        ------
        ProtocolError
            If the shard is not paused; the move is unchanged.
        """
        if not self.paused:
            raise self._illegal(MoveEvent.TARGET_LOST)
        self.target, self.route = target, Route(same_node=False, target_at_home=at_home)
        return self.handle(MoveEvent.TARGET_LOST)

    def handle(self, event: MoveEvent) -> Action:
        """Change the phase as the table says, and return what to do.

        Parameters
        ----------
        event : MoveEvent
            What happened.

        Returns
        -------
        Action
            What the executor does next.

        Raises
        ------
        ProtocolError
            If the event is illegal in this phase; the move is unchanged.
        """
        entry = TABLE.get((self.phase, event, self.route.next_action))
        if entry is None:
            raise self._illegal(event)
        self.phase, action = entry
        return action

    def _illegal(self, event: MoveEvent) -> ProtocolError:
        return ProtocolError(
            f"move of shard {self.shard} from task {self.source} to {self.target}: "
            f"{event.value!r} is illegal in phase {self.phase.value!r}"
        )
