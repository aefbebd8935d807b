"""Instant shard move as a table of (phase, event, whether the source has left) -> (phase, action).

Notes
-----
Enorm, sections 4.5 and 5; decision 75. The rows of a shard go to the new owner, which begins without state, while the
old one, on another node, finishes the rows that it has. Its partial aggregates are handed over through the home behind
that, and the new owner merges them like rows. A state record, by which windows close, waits until they have arrived,
and with it the rows behind it; nothing else waits for them.

The shard pauses only while the target is opened, which takes no longer for more state (decision 90). Before, while the
source processes the shard, the home sets the primary copy of a remote source aside. A source at home works on the
primary copy: what the target flushes is set aside until the source has left.

If the source is lost, what it had flushed is merged, and the target processes the rest. If the target is lost before
the partials have arrived, the shard waits for them. Its next owner is installed from the primary copy, and merges them.

A smooth move (decision 80) is an instant one whose source stays: it gets the rows of the windows that had begun, and
closes these; the target gets those of later windows. When the last window of the source has closed, its label finds no
partials. If the source must leave before, or is lost, its partials are merged as those of an instant move.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dask_elastic.vocab.errors import ProtocolError


class InstantPhase(Enum):
    """Phase of an instant move."""

    REQUESTED = "requested"
    WAITING = "waiting"
    OPENING = "opening"
    STAYING = "staying"
    LEAVING = "leaving"
    CLOSING = "closing"
    ORPHANED = "orphaned"
    INSTALLING = "installing"
    ARRIVED = "arrived"
    CANCELLED = "cancelled"


PAUSED = frozenset(
    {
        InstantPhase.OPENING,
        InstantPhase.CLOSING,
        InstantPhase.ORPHANED,
        InstantPhase.INSTALLING,
    }
)
"""The phases in which the shard's routing is paused."""

ENDED = frozenset({InstantPhase.ARRIVED, InstantPhase.CANCELLED})
"""The phases that a move never leaves."""


class InstantEvent(Enum):
    """An event of an instant move."""

    SOURCE_BUSY = "source has a state record in flight, or its primary copy is not set aside"
    SOURCE_READY = "source has no state record in flight"
    TARGET_DRAINING = "target is draining"
    CUT_DUE = "state is about to be copied"
    LABEL_RETURNED = "label returned"
    OPENED = "target opened"
    OPENED_BESIDE = "target opened beside a source that keeps its windows"
    WINDOWS_CLOSED = "source has closed its last window"
    TASK_DRAINS = "source or target drains"
    RECORD_ENTERED = "state record entered"
    INSTALLED = "installed"
    SOURCE_LOST = "source lost"
    TARGET_LOST = "target lost"


class InstantAction(Enum):
    """What the executor does next."""

    WAIT = "wait for the next event"
    OPEN = "pause the shard, and let the target begin without state"
    LEAVE = "release the rows to the target up to the first state record, and send the label through the source"
    STAY = "divide the rows between source and target by the windows that they are in"
    TAKE_LEAVE = "route all rows to the target, and send the label through the source"
    HOLD = "pause the shard: its state record waits for the partials"
    RECALL = "send the label through the source; the shard waits"
    INSTALL = "send the primary copy to the target"
    MERGE = "let the target merge the partials, before the first state record that waits; release the rows"
    CANCEL = "put back what was set aside and end the move; the shard's routing was never changed"


LETS_GO = frozenset({InstantEvent.LABEL_RETURNED, InstantEvent.SOURCE_LOST})
"""The events after which the source processes no row of the shard any more."""

_P, _E, _A = InstantPhase, InstantEvent, InstantAction

_ANYWAY: dict[tuple[InstantPhase, InstantEvent], tuple[InstantPhase, InstantAction]] = {
    (_P.REQUESTED, _E.SOURCE_BUSY): (_P.WAITING, _A.WAIT),
    (_P.REQUESTED, _E.SOURCE_READY): (_P.OPENING, _A.OPEN),
    (_P.WAITING, _E.SOURCE_READY): (_P.OPENING, _A.OPEN),
    (_P.WAITING, _E.TARGET_DRAINING): (_P.CANCELLED, _A.CANCEL),
    # A checkpoint has the primary copy, which must not be set aside between the last flush and the copy.
    (_P.WAITING, _E.CUT_DUE): (_P.CANCELLED, _A.CANCEL),
    (_P.WAITING, _E.SOURCE_LOST): (_P.CANCELLED, _A.CANCEL),
    (_P.WAITING, _E.TARGET_LOST): (_P.CANCELLED, _A.CANCEL),
    (_P.OPENING, _E.SOURCE_LOST): (_P.OPENING, _A.WAIT),
    # Whatever ends the stay of the source, its label comes back with the partials of the windows that are still open.
    (_P.STAYING, _E.WINDOWS_CLOSED): (_P.LEAVING, _A.TAKE_LEAVE),
    (_P.STAYING, _E.TASK_DRAINS): (_P.LEAVING, _A.TAKE_LEAVE),
    (_P.STAYING, _E.CUT_DUE): (_P.LEAVING, _A.TAKE_LEAVE),
    (_P.STAYING, _E.SOURCE_LOST): (_P.ARRIVED, _A.MERGE),
    (_P.STAYING, _E.TARGET_LOST): (_P.ORPHANED, _A.RECALL),
    (_P.LEAVING, _E.RECORD_ENTERED): (_P.CLOSING, _A.HOLD),
    (_P.LEAVING, _E.LABEL_RETURNED): (_P.ARRIVED, _A.MERGE),
    (_P.LEAVING, _E.SOURCE_LOST): (_P.ARRIVED, _A.MERGE),
    (_P.LEAVING, _E.TARGET_LOST): (_P.ORPHANED, _A.WAIT),
    (_P.CLOSING, _E.LABEL_RETURNED): (_P.ARRIVED, _A.MERGE),
    (_P.CLOSING, _E.SOURCE_LOST): (_P.ARRIVED, _A.MERGE),
    (_P.CLOSING, _E.TARGET_LOST): (_P.ORPHANED, _A.WAIT),
    (_P.ORPHANED, _E.LABEL_RETURNED): (_P.INSTALLING, _A.INSTALL),
    (_P.ORPHANED, _E.SOURCE_LOST): (_P.INSTALLING, _A.INSTALL),
    (_P.ORPHANED, _E.TARGET_LOST): (_P.ORPHANED, _A.WAIT),
    (_P.INSTALLING, _E.INSTALLED): (_P.ARRIVED, _A.MERGE),
    (_P.INSTALLING, _E.TARGET_LOST): (_P.INSTALLING, _A.INSTALL),
}

TABLE: dict[tuple[InstantPhase, InstantEvent, bool], tuple[InstantPhase, InstantAction]] = {
    **{
        (*row, left): entry for row, entry in _ANYWAY.items() for left in (False, True) if left or row[1] not in LETS_GO
    },
    (_P.OPENING, _E.OPENED, False): (_P.LEAVING, _A.LEAVE),
    (_P.OPENING, _E.OPENED_BESIDE, False): (_P.STAYING, _A.STAY),
    (_P.OPENING, _E.OPENED, True): (_P.ARRIVED, _A.MERGE),
    # The target may be lost before anything was sent to it, and the next one may be on the node of the source.
    (_P.OPENING, _E.TARGET_LOST, False): (_P.ORPHANED, _A.RECALL),
    (_P.OPENING, _E.TARGET_LOST, True): (_P.OPENING, _A.OPEN),
}
"""The whole protocol; an event that is not listed is illegal and changes nothing. The third part is whether the source
has left after the event."""


@dataclass
class InstantMove:
    """The instant move of one shard between two nodes, from the request until its partials are on their way.

    Parameters
    ----------
    shard, source, target : int
        The shard and the two tasks.
    phase : InstantPhase
        The move's phase.
    paused_at : float
        When routing was paused, seconds; 0 before.
    has_left : bool
        Whether the source processes no row of the shard any more.
    smooth : bool
        Whether the source keeps the windows that have begun.

    Examples
    --------
    >>> move = InstantMove(7, source=0, target=1)
    >>> move.handle(InstantEvent.SOURCE_READY).name, move.handle(InstantEvent.OPENED).name, move.is_paused
    ('OPEN', 'LEAVE', False)
    >>> move.handle(InstantEvent.LABEL_RETURNED).name, move.phase
    ('MERGE', <InstantPhase.ARRIVED: 'arrived'>)
    """

    shard: int
    source: int
    target: int
    phase: InstantPhase = InstantPhase.REQUESTED
    paused_at: float = 0.0
    has_left: bool = False
    smooth: bool = False

    @property
    def is_paused(self) -> bool:
        """Whether the shard's routing is paused."""
        return self.phase in PAUSED

    def replace_target(self, target: int) -> InstantAction:
        """Take a new target in place of the lost one, and return what to do.

        Parameters
        ----------
        target : int
            The new target task.

        Returns
        -------
        InstantAction
            What the executor does next.

        Raises
        ------
        ProtocolError
            If the loss of the target is illegal in this phase; the move is unchanged.
        """
        action = self.handle(InstantEvent.TARGET_LOST)
        self.target = target
        return action

    def handle(self, event: InstantEvent) -> InstantAction:
        """Change the phase as the table says, and return what to do.

        Parameters
        ----------
        event : InstantEvent
            What happened.

        Returns
        -------
        InstantAction
            What the executor does next.

        Raises
        ------
        ProtocolError
            If the event is illegal in this phase; the move is unchanged.
        """
        left = self.has_left or event in LETS_GO
        entry = TABLE.get((self.phase, event, left))
        if entry is None:
            raise ProtocolError(
                f"instant move of shard {self.shard} from task {self.source} to {self.target}: "
                f"{event.value!r} is illegal in phase {self.phase.value!r}"
            )
        self.has_left = left
        self.phase, action = entry
        return action
