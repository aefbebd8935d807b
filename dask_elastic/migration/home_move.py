"""Move of an executor's home to another node, as a table of (phase, event) -> (phase, action).

Notes
-----
Decisions 76 and 84. The old home drives the move. It first copies the state to the new home in portions, while the
executor goes on, until little changes during a round. Then the upstream instances switch to the new home one by one,
each with an end mark behind its last send to the old home. The new home holds what it gets. When the end marks of all
inputs have arrived and all rows before them are settled, nothing is in flight within the executor, as at the cut of a
checkpoint. A fence through each channel then finds out that nothing is in flight behind the executor either. Meanwhile
the old home sends what is not copied of the state, which changes no more, and hands its standing over. The new home
begins as after a restart from a checkpoint, with what it has held.

Until the first instance has switched, the move can be cancelled. From then on the loss of either home is the loss of a
home: the job restarts from its newest checkpoint, or fails if it has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from dask_elastic.vocab.errors import ProtocolError
from dask_elastic.vocab.identity import ExecutorId


class HomePhase(Enum):
    """Phase of the move of a home."""

    REQUESTED = "requested"
    COPYING = "copying"
    PREPARING = "preparing"
    SWITCHING = "switching"
    FENCING = "fencing"
    HANDING_OVER = "handing over"
    ARRIVED = "arrived"
    CANCELLED = "cancelled"
    LOST = "lost"


ENDED = frozenset({HomePhase.ARRIVED, HomePhase.CANCELLED, HomePhase.LOST})
"""The phases that a move never leaves."""


class HomeEvent(Enum):
    """An event of the move of a home."""

    STARTED = "started"
    COPIED = "what is not copied is small"
    PREPARED = "new home is prepared"
    DRAINED = "executor is drained"
    PASSED = "a fence has come back"
    ALL_PASSED = "the last fence has come back"
    INSTALLED = "new home has begun"
    INPUTS_ENDED = "executor has finished"
    HOME_LOST = "a home is lost"


class HomeAction(Enum):
    """What the old home does next."""

    COPY = "copy the state to the new home while the executor goes on"
    PREPARE = "let the new home hold what arrives for the executor"
    SWITCH = "let all upstream instances switch to the new home, each with an end mark"
    FENCE = "let all receivers of outputs return credit to the new home, and confirm it behind earlier credit"
    HAND_OVER = "send what is not copied of the state, and the standing, to the new home"
    WAIT = "wait for the next event"
    CLOSE = "forget the executor; commands that come late are passed on"
    CANCEL = "end the move; the executor stays"
    RESTART = "treat it as the loss of a home: restart the job from its checkpoint, or fail it"


_UNSWITCHED = (HomePhase.REQUESTED, HomePhase.COPYING, HomePhase.PREPARING)
_SWITCHED = (HomePhase.SWITCHING, HomePhase.FENCING, HomePhase.HANDING_OVER)

TABLE: dict[tuple[HomePhase, HomeEvent], tuple[HomePhase, HomeAction]] = {
    (HomePhase.REQUESTED, HomeEvent.STARTED): (HomePhase.COPYING, HomeAction.COPY),
    (HomePhase.COPYING, HomeEvent.COPIED): (HomePhase.PREPARING, HomeAction.PREPARE),
    (HomePhase.PREPARING, HomeEvent.PREPARED): (HomePhase.SWITCHING, HomeAction.SWITCH),
    (HomePhase.SWITCHING, HomeEvent.DRAINED): (HomePhase.FENCING, HomeAction.FENCE),
    (HomePhase.FENCING, HomeEvent.PASSED): (HomePhase.FENCING, HomeAction.WAIT),
    (HomePhase.FENCING, HomeEvent.ALL_PASSED): (HomePhase.HANDING_OVER, HomeAction.HAND_OVER),
    (HomePhase.HANDING_OVER, HomeEvent.INSTALLED): (HomePhase.ARRIVED, HomeAction.CLOSE),
    # An executor whose inputs have all ended is not drained for a move: it finishes where it is.
    **{(phase, HomeEvent.INPUTS_ENDED): (HomePhase.CANCELLED, HomeAction.CANCEL) for phase in _UNSWITCHED},
    (HomePhase.SWITCHING, HomeEvent.INPUTS_ENDED): (HomePhase.CANCELLED, HomeAction.CANCEL),
    **{(phase, HomeEvent.HOME_LOST): (HomePhase.CANCELLED, HomeAction.CANCEL) for phase in _UNSWITCHED},
    **{(phase, HomeEvent.HOME_LOST): (HomePhase.LOST, HomeAction.RESTART) for phase in _SWITCHED},
}
"""The whole protocol; an event that is not listed is illegal and changes nothing."""


@dataclass
class HomeMove:
    """The move of one executor's home, from the request to its end.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    source, target : int
        The nodes of its old and its new home.
    phase : HomePhase
        The move's phase.

    Attributes
    ----------
    unpassed : set of int
        The nodes from which the fence has not come back.

    Examples
    --------
    >>> move = HomeMove(ExecutorId("per_key", 0), source=0, target=1)
    >>> events = (HomeEvent.STARTED, HomeEvent.COPIED, HomeEvent.PREPARED, HomeEvent.DRAINED)
    >>> [move.handle(event).name for event in events]
    ['COPY', 'PREPARE', 'SWITCH', 'FENCE']
    >>> move.fence([0, 2])
    >>> move.passed(2).name, move.passed(0).name, move.handle(HomeEvent.INSTALLED).name
    ('WAIT', 'HAND_OVER', 'CLOSE')
    """

    executor: ExecutorId
    source: int
    target: int
    phase: HomePhase = HomePhase.REQUESTED
    unpassed: set[int] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens in this move."""
        return self.phase in ENDED

    def fence(self, nodes: Iterable[int]) -> None:
        """Note the nodes to which the fence is sent; `passed` is called for each of them.

        Parameters
        ----------
        nodes : iterable of int
            The nodes; at least one.
        """
        self.unpassed = set(nodes)

    def passed(self, node: int) -> HomeAction:
        """Note that the fence has come back from a node, and return what to do.

        Parameters
        ----------
        node : int
            The node.

        Returns
        -------
        HomeAction
            What the old home does next.

        Raises
        ------
        ProtocolError
            If no fence of this node is awaited; the move is unchanged.
        """
        if node not in self.unpassed:
            raise ProtocolError(f"{self}: a fence came back from node {node}, but none is awaited from there")
        self.unpassed.discard(node)
        return self.handle(HomeEvent.PASSED if self.unpassed else HomeEvent.ALL_PASSED)

    def handle(self, event: HomeEvent) -> HomeAction:
        """Change the phase as the table says, and return what to do.

        Parameters
        ----------
        event : HomeEvent
            What happened.

        Returns
        -------
        HomeAction
            What the old home does next.

        Raises
        ------
        ProtocolError
            If the event is illegal in this phase; the move is unchanged.
        """
        entry = TABLE.get((self.phase, event))
        if entry is None:
            raise ProtocolError(f"{self}: {event.value!r} is illegal in phase {self.phase.value!r}")
        self.phase, action = entry
        return action

    def __str__(self) -> str:
        return f"move of the home of {self.executor} from node {self.source} to {self.target}"
