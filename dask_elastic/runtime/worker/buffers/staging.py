"""The staged attempts at one instance of a source for Spark: their chunks, and the memory they may use. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from dask_elastic.vocab.epoch import AttemptId
from dask_elastic.vocab.errors import HandoffError

ABANDONED_SECONDS = 86_400.0
"""An attempt that was not committed for so long is of a query that writes its epoch again, if it comes back at all."""

Held = TypeVar("Held")
"""The data of a chunk: its bytes, or the file that holds them."""


class Room(Enum):
    """Where a new chunk goes: into memory, nowhere before there is room, or to disk."""

    KEEP = auto()
    WAIT = auto()
    SPILL = auto()


class Chunk(NamedTuple, Generic[Held]):
    """A few rows as the writer sent them.

    Parameters
    ----------
    held : object
        Their bytes, or the file that holds them.
    nbytes : int
        Number of bytes.
    spilled : bool
        Whether they are on disk.
    """

    held: Held
    nbytes: int
    spilled: bool


@dataclass
class _Attempt(Generic[Held]):
    since: float
    chunks: deque[Chunk[Held]] = field(default_factory=deque)
    finished: bool = False
    sealed: bool = False
    begun: bool = False

    def nbytes(self, spilled: bool) -> int:
        return sum(chunk.nbytes for chunk in self.chunks if chunk.spilled is spilled)


class Staging(Generic[Held]):
    """The rows that wait for their commit, and the committed ones that the source has not read yet.

    Parameters
    ----------
    limit : int
        Bytes to keep in memory. Beyond it a writer waits as long as memory holds committed rows, because the source
        reads these and so makes room; without any, no room would ever come, and the writer's rows go to disk.

    Attributes
    ----------
    memory : int
        Bytes in memory.
    spilled : int
        Bytes on disk.

    Examples
    --------
    >>> staging = Staging(limit=100)
    >>> attempt = AttemptId("q", 0, 0, "a")
    >>> staging.begin(attempt)
    >>> staging.room(80)
    <Room.KEEP: 1>
    >>> staging.add(attempt, "first", 80)
    >>> staging.room(80)
    <Room.SPILL: 3>
    >>> staging.finish(attempt)
    >>> staging.seal("q", 0, [attempt])
    []
    >>> staging.room(80)
    <Room.WAIT: 2>
    >>> staging.take(attempt).held, staging.take(attempt), staging.memory
    ('first', None, 0)
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.memory = 0
        self.spilled = 0
        self._sealed = 0
        self._attempts: dict[AttemptId, _Attempt[Held]] = {}

    @property
    def attempts(self) -> frozenset[AttemptId]:
        """The attempts that have begun and were not dropped or read."""
        return frozenset(self._attempts)

    def finished(self, attempts: Collection[AttemptId]) -> list[AttemptId]:
        """Return those of some attempts that are staged completely."""
        return [attempt for attempt in attempts if attempt in self._attempts and self._attempts[attempt].finished]

    def whole(self, attempt: AttemptId) -> tuple[Chunk[Held], ...] | None:
        """Return all chunks of an attempt; None unless it is staged completely and none was taken."""
        state = self._attempts.get(attempt)
        return None if state is None or state.begun or not state.finished else tuple(state.chunks)

    def is_sealed(self, attempt: AttemptId) -> bool:
        """Return whether an attempt is staged here and was chosen."""
        return attempt in self._attempts and self._attempts[attempt].sealed

    def begin(self, attempt: AttemptId, now: float = 0.0) -> None:
        """Begin to stage an attempt, at a time in seconds.

        Raises
        ------
        HandoffError
            If the attempt has begun already.
        """
        if attempt in self._attempts:
            raise HandoffError(f"{attempt} is staged already.")
        self._attempts[attempt] = _Attempt(now)

    def drop_abandoned(self, now: float) -> list[Held]:
        """Drop what was staged long ago and never committed, such as the rows of a driver that was killed.

        Parameters
        ----------
        now : float
            The time in seconds.

        Returns
        -------
        list
            The data of the dropped chunks.
        """
        before = now - ABANDONED_SECONDS
        old = [attempt for attempt, state in self._attempts.items() if state.since < before and not state.sealed]
        return [held for attempt in old for held in self.drop(attempt)]

    def room(self, nbytes: int) -> Room:
        """Return where a chunk of so many bytes goes."""
        if self.memory + nbytes <= self.limit:
            return Room.KEEP
        return Room.WAIT if self._sealed else Room.SPILL

    def add(self, attempt: AttemptId, held: Held, nbytes: int, spilled: bool = False) -> None:
        """Add a chunk.

        Raises
        ------
        HandoffError
            If the attempt was dropped: another one was chosen, or the epoch was aborted.
        """
        state = self._open(attempt)
        state.chunks.append(Chunk(held, nbytes, spilled))
        self._count(nbytes, spilled)

    def finish(self, attempt: AttemptId) -> None:
        """Note that all chunks of an attempt are staged.

        Raises
        ------
        HandoffError
            If it was dropped.
        """
        self._open(attempt).finished = True

    def seal(self, query: str, epoch: int, chosen: Collection[AttemptId]) -> list[Held]:
        """Keep the attempts chosen for an epoch, and drop all others of the query up to this epoch.

        Parameters
        ----------
        query : str
            The streaming query that wrote them.
        epoch : int
            The epoch.
        chosen : collection of AttemptId
            The attempts to keep. They may be sealed already.

        Returns
        -------
        list
            The data of the dropped chunks.

        Raises
        ------
        HandoffError
            If a chosen attempt is not staged completely; nothing is changed then.
        """
        for attempt in chosen:
            state = self._attempts.get(attempt)
            if state is None or not state.finished:
                raise HandoffError(f"{attempt}: its staged rows are lost; write the epoch again.")
        for attempt in chosen:
            state = self._attempts[attempt]
            if not state.sealed:
                state.sealed = True
                self._sealed += state.nbytes(spilled=False)
        others = [
            attempt
            for attempt, state in self._attempts.items()
            if attempt.query == query and attempt.epoch <= epoch and not state.sealed
        ]
        return [held for attempt in others for held in self.drop(attempt)]

    def abort(self, query: str, epoch: int, keep: Collection[AttemptId]) -> list[Held]:
        """Drop all attempts of an epoch but some.

        Parameters
        ----------
        query : str
            The streaming query that wrote them.
        epoch : int
            The epoch.
        keep : collection of AttemptId
            The committed attempts.

        Returns
        -------
        list
            The data of the dropped chunks.
        """
        others = [a for a in self._attempts if (a.query, a.epoch) == (query, epoch) and a not in keep]
        return [held for attempt in others for held in self.drop(attempt)]

    def drop(self, attempt: AttemptId) -> list[Held]:
        """Drop an attempt; returns the data of its chunks."""
        state = self._attempts.pop(attempt, None)
        if state is None:
            return []
        for chunk in state.chunks:
            self._uncount(state, chunk)
        return [chunk.held for chunk in state.chunks]

    def drop_all(self) -> list[Held]:
        """Drop all attempts; returns the data of their chunks."""
        return [held for attempt in [*self._attempts] for held in self.drop(attempt)]

    def take(self, attempt: AttemptId) -> Chunk[Held] | None:
        """Remove and return the next chunk of a sealed attempt; None after the last, which also removes the attempt.

        Raises
        ------
        HandoffError
            If the attempt is not staged here, or not sealed.
        """
        state = self._attempts.get(attempt)
        if state is None or not state.sealed:
            raise HandoffError(f"{attempt} is committed, but its rows are not staged here.")
        if not state.chunks:
            del self._attempts[attempt]
            return None
        state.begun = True
        chunk = state.chunks.popleft()
        self._uncount(state, chunk)
        return chunk

    def _open(self, attempt: AttemptId) -> _Attempt[Held]:
        state = self._attempts.get(attempt)
        if state is None or state.finished:
            raise HandoffError(f"{attempt} is not being staged: another attempt was chosen, or the epoch was aborted.")
        return state

    def _count(self, nbytes: int, spilled: bool) -> None:
        if spilled:
            self.spilled += nbytes
        else:
            self.memory += nbytes

    def _uncount(self, state: _Attempt[Held], chunk: Chunk[Held]) -> None:
        self._count(-chunk.nbytes, chunk.spilled)
        if state.sealed and not chunk.spilled:
            self._sealed -= chunk.nbytes
