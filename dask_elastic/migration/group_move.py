"""Move of key groups between executors, as one table of (phase, event) -> (phase, action) for each strategy.

Notes
-----
Decisions 86 and 99. A coordinator outside the data path drives the move; the executors that gain or lose groups take
part. In both strategies the participants hold what arrives for the groups that they are to gain.

- *progressive* (State migration, section 3.2): first the state of the groups is copied, beside the data path and while
  they are processed, so that only what changes meanwhile is left for the hand-over. Then the upstream instances switch
  to the next table one by one, each with an end mark for the participants, and never wait. Each executor hands groups
  over as soon as it has processed their rows; each resumes the groups that it gains as soon as their state is there.
  Groups that do not move never wait.
- *synchronised* (the resource-centric baseline of Elasticutor, section 2.2): the upstream instances pause; all
  executors of the operator process what is in flight; then the state moves, and the upstream instances resume with the
  next table.

Until the upstream instances are asked to switch or to pause, a move can be cancelled. From then on a loss ends the
generation of the job, which restarts from its newest checkpoint or fails if it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from dask_elastic.vocab.errors import ProtocolError

PROGRESSIVE = "progressive"
SYNCHRONISED = "synchronised"

T = TypeVar("T", bound=object)


class GroupPhase(Enum):
    """Phase of a move of groups."""

    REQUESTED = "requested"
    COPYING = "copying"
    HOLDING = "holding"
    SWITCHING = "switching"
    PAUSING = "pausing"
    MOVING = "moving"
    RESUMING = "resuming"
    ARRIVED = "arrived"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    LOST = "lost"


ENDED = frozenset({GroupPhase.ARRIVED, GroupPhase.CANCELLED, GroupPhase.LOST})
"""The phases that a move never leaves."""


class GroupEvent(Enum):
    """An event of a move of groups."""

    STARTED = "started"
    ALL_ANSWERED = "all have answered"
    REFUSED = "all have answered, some refuse"
    LOST = "a participant is lost"


class GroupAction(Enum):
    """What the coordinator asks for next; all whom it asks answer."""

    COPY = "participants: copy the state of the groups to leave, while these are processed"
    HOLD = "participants: hold what arrives for the groups to come; in progressive moves, end what tasks have taken"
    SWITCH = "upstream instances: use the next table; participants: hand groups over, answer when all have come"
    PAUSE = "upstream instances: pause, with an end mark to each executor; executors: answer when they are drained"
    MOVE = "participants: hand groups over, answer when all have come"
    RESUME = "upstream instances: resume with the next table"
    CLOSE = "nothing: the move has ended"
    CANCEL = "participants: forget the move"
    RESTART = "treat it as the loss of a home: restart the job from its checkpoint, or fail it"


Row = tuple[GroupPhase, GroupEvent]
Entry = tuple[GroupPhase, GroupAction]

CANCELLABLE = frozenset({GroupAction.COPY, GroupAction.HOLD, GroupAction.CANCEL})
"""The actions during which an error leaves all groups where they are."""

_COMMON: dict[Row, Entry] = {
    # An executor whose inputs have all ended takes no part: its groups stay.
    (GroupPhase.HOLDING, GroupEvent.REFUSED): (GroupPhase.CANCELLING, GroupAction.CANCEL),
    (GroupPhase.CANCELLING, GroupEvent.ALL_ANSWERED): (GroupPhase.CANCELLED, GroupAction.CLOSE),
    # Those that are left are asked, and answer.
    **{
        (phase, GroupEvent.LOST): (GroupPhase.CANCELLING, GroupAction.CANCEL)
        for phase in (GroupPhase.REQUESTED, GroupPhase.HOLDING, GroupPhase.CANCELLING)
    },
}

TABLES: dict[str, dict[Row, Entry]] = {
    PROGRESSIVE: {
        **_COMMON,
        (GroupPhase.REQUESTED, GroupEvent.STARTED): (GroupPhase.COPYING, GroupAction.COPY),
        (GroupPhase.COPYING, GroupEvent.ALL_ANSWERED): (GroupPhase.HOLDING, GroupAction.HOLD),
        # For example if there is no memory for the state at its next executor.
        (GroupPhase.COPYING, GroupEvent.REFUSED): (GroupPhase.CANCELLING, GroupAction.CANCEL),
        (GroupPhase.COPYING, GroupEvent.LOST): (GroupPhase.CANCELLING, GroupAction.CANCEL),
        (GroupPhase.HOLDING, GroupEvent.ALL_ANSWERED): (GroupPhase.SWITCHING, GroupAction.SWITCH),
        (GroupPhase.SWITCHING, GroupEvent.ALL_ANSWERED): (GroupPhase.ARRIVED, GroupAction.CLOSE),
        (GroupPhase.SWITCHING, GroupEvent.LOST): (GroupPhase.LOST, GroupAction.RESTART),
    },
    SYNCHRONISED: {
        **_COMMON,
        (GroupPhase.REQUESTED, GroupEvent.STARTED): (GroupPhase.HOLDING, GroupAction.HOLD),
        (GroupPhase.HOLDING, GroupEvent.ALL_ANSWERED): (GroupPhase.PAUSING, GroupAction.PAUSE),
        (GroupPhase.PAUSING, GroupEvent.ALL_ANSWERED): (GroupPhase.MOVING, GroupAction.MOVE),
        (GroupPhase.MOVING, GroupEvent.ALL_ANSWERED): (GroupPhase.RESUMING, GroupAction.RESUME),
        (GroupPhase.RESUMING, GroupEvent.ALL_ANSWERED): (GroupPhase.ARRIVED, GroupAction.CLOSE),
        **{
            (phase, GroupEvent.LOST): (GroupPhase.LOST, GroupAction.RESTART)
            for phase in (GroupPhase.PAUSING, GroupPhase.MOVING, GroupPhase.RESUMING)
        },
    },
}
"""The whole protocol by strategy; an event that is not listed is illegal and changes nothing."""


@dataclass
class GroupMove(Generic[T]):
    """The move of a set of groups of one operator, from the request to its end.

    Parameters
    ----------
    operator : str
        The operator.
    version : int
        The version of the table of the first tier that the move leads to.
    executors : mapping of int to int
        The next executor of each group that moves.
    before : mapping of int to int
        The executor of each of these groups until then.
    strategy : {"progressive", "synchronised"}
        How the groups move.
    phase : GroupPhase
        The move's phase.

    Attributes
    ----------
    unanswered : set
        Those that were asked and have not answered.
    refused : bool
        Whether one of those that were asked last has refused.

    Examples
    --------
    >>> move = GroupMove("per_key", 1, {5: 1}, before={5: 0})
    >>> move.handle(GroupEvent.STARTED).name
    'COPY'
    >>> move.ask([0, 1])
    >>> move.answered(0), move.answered(1).name
    (None, 'HOLD')
    """

    operator: str
    version: int
    executors: Mapping[int, int]
    before: Mapping[int, int]
    strategy: str = PROGRESSIVE
    phase: GroupPhase = GroupPhase.REQUESTED
    unanswered: set[T] = field(default_factory=set)
    refused: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens in this move."""
        return self.phase in ENDED

    def ask(self, whom: Iterable[T]) -> None:
        """Note who was asked to carry out an action; `answered` is called for each.

        Parameters
        ----------
        whom : iterable
            Executors or nodes; at least one.
        """
        self.unanswered = set(whom)
        self.refused = False

    def answered(self, who: T, refuses: bool = False) -> GroupAction | None:
        """Note an answer, and return what to do if it is the last one.

        Parameters
        ----------
        who : object
            Who has answered.
        refuses : bool
            Whether it cannot take part.

        Returns
        -------
        GroupAction or None
            What the coordinator asks for next; None while answers are missing.

        Raises
        ------
        ProtocolError
            If no answer of `who` is awaited; the move is unchanged.
        """
        if who not in self.unanswered:
            raise ProtocolError(f"{self}: {who} has answered, but no answer is awaited from there")
        self.unanswered.discard(who)
        self.refused |= refuses
        if self.unanswered:
            return None
        return self.handle(GroupEvent.REFUSED if self.refused else GroupEvent.ALL_ANSWERED)

    def handle(self, event: GroupEvent) -> GroupAction:
        """Change the phase as the table says, and return what to do.

        Parameters
        ----------
        event : GroupEvent
            What happened.

        Returns
        -------
        GroupAction
            What the coordinator does next.

        Raises
        ------
        ProtocolError
            If the event is illegal in this phase; the move is unchanged.
        """
        entry = TABLES[self.strategy].get((self.phase, event))
        if entry is None:
            raise ProtocolError(f"{self}: {event.value!r} is illegal in phase {self.phase.value!r}")
        self.phase, action = entry
        return action

    def __str__(self) -> str:
        return f"{self.strategy} move of {len(self.executors)} groups of {self.operator!r} to version {self.version}"
