"""The checkpoints of one job on the scheduler: the one in progress, and the newest ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.control.checkpoint_progress import CheckpointProgress
from dask_elastic.runtime.scheduler.spooled_ledger import SpooledLedger
from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus, JobRestart
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.text.shown_url import shown_url

KEPT_DESCRIPTIONS = 100


class JobCheckpoints:
    """The checkpoints of one job.

    Parameters
    ----------
    url : str
        The folder.
    topology : FileRef
        The pickled components.
    last : int
        The newest number that was used in the folder.
    newest : int
        The newest complete checkpoint; 0 for none.
    reserved : int
        The newest generation that this scheduler has reserved for the job.
    owner : str
        Identifies this run of the job; what reserves generations.

    Attributes
    ----------
    progress : CheckpointProgress or None
        The checkpoint in progress.
    publishing : asyncio.Lock
        Held while a manifest is written: a restart waits for it before it chooses the newest checkpoint.
    halting, reserving : asyncio.Lock
        Held while a restart ends the parts of a generation, and while it reserves the next one in the folder.
    exclusive : asyncio.Lock
        Held while a checkpoint is taken, and while a home or key groups move.
    requested : asyncio.Event
        Set to have a checkpoint taken soon.
    descriptions : deque of CheckpointDescription
        The newest checkpoints, oldest first.
    attempts : int
        Restarts since the newest checkpoint became complete.
    ledgers : dict of str to SpooledLedger
        By source, the committed epochs of Spark that survive restarts.
    resumed : bool
        Whether the job began from a checkpoint.
    restarts : int
        All restarts of this run of the job; the resumption counts as one.
    restarted : deque of JobRestart
        The newest restarts of this run, and attempts that failed, oldest first.
    stopping : bool
        Whether the job is to be stopped with a savepoint.
    leaving : bool
        Whether the job is to be restarted without workers that are to leave.
    held : bool
        Whether sources accept nothing more, because what they have accepted is being copied to a savepoint.
    committed : int
        The newest checkpoint that all sinks have committed in this generation.
    parts_ended : asyncio.Event
        Set when the workers that report have ended their parts and written their last files, or do not answer.
    end_noted : asyncio.Event
        Set when the folder says that the job has ended, or this cannot be written.
    late : set of int
        Nodes that have ended their part of a job that has ended, and whose last files may still appear.
    settling : asyncio.Task or None
        Ends when nothing changes the folder of a job that has ended any more, or with what has not answered; None until
        a client waits for that.
    opened : set of str
        The sinks of which a writer has opened in this run. This need not be durable: a job that has no checkpoint yet
        does not survive its scheduler.
    """

    def __init__(self, url: str, topology: FileRef, last: int = 0, newest: int = 0, reserved: int = 0, owner: str = ""):
        self.url = url
        self.topology = topology
        self.newest = newest
        self.reserved = reserved
        self.owner = owner
        self.last = last
        self.progress: CheckpointProgress[bytes] | None = None
        self.publishing = asyncio.Lock()
        self.halting, self.reserving = asyncio.Lock(), asyncio.Lock()
        self.exclusive = asyncio.Lock()
        self.requested = asyncio.Event()
        self.descriptions: deque[CheckpointDescription] = deque(maxlen=KEPT_DESCRIPTIONS)
        self.attempts = 0
        self.ledgers: dict[str, SpooledLedger] = {}
        self.resumed = False
        self.restarts = 0
        self.restarted: deque[JobRestart] = deque(maxlen=KEPT_DESCRIPTIONS)
        self.stopping = False
        self.leaving = False
        self.held = False
        self.committed = 0
        self.parts_ended, self.end_noted = asyncio.Event(), asyncio.Event()
        self.late: set[int] = set()
        self.settling: asyncio.Task[str] | None = None
        self.opened: set[str] = set()
        self._committing: tuple[int, set[ExecutorId]] = (0, set())
        self._pins: list[int] = []
        self._complete: CheckpointDescription | None = None
        self._given_up: CheckpointDescription | None = None
        self._given_up_count = 0
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._commit = asyncio.Event()
        self._error: bytes | None = None

    def no_parts(self) -> None:
        """Note that nothing more comes of the job's parts: they could not start, or the scheduler closes."""
        self.parts_ended.set()
        self.end_noted.set()

    def next_number(self) -> int:
        """Return the number of the next checkpoint."""
        self.last += 1
        return self.last

    def begin(self, progress: CheckpointProgress[bytes]) -> None:
        """Note the checkpoint that begins."""
        self.progress = progress
        self._settled = asyncio.Event()
        self._error = None

    def settle(self, error: bytes | None = None) -> None:
        """Wake who waits for the checkpoint in progress: everything is acknowledged, or it failed."""
        self._error = error
        self._settled.set()

    async def settled(self) -> bytes | None:
        """Return when everything is acknowledged; the error if it failed."""
        await self._settled.wait()
        return self._error

    def completed(self, description: CheckpointDescription) -> None:
        """Note the end of the checkpoint in progress."""
        self.progress = None
        self._ended.set()
        self._ended = asyncio.Event()
        self.descriptions.append(description)
        if description.error is None:
            self.newest = description.number
            self.attempts = 0
            self._complete = description
        else:
            self._given_up = description
            self._given_up_count += 1

    def begin_commits(self, number: int, sinks: Iterable[ExecutorId]) -> None:
        """Note that sinks are to commit a complete checkpoint."""
        self._committing = number, set(sinks)
        if not self._committing[1]:
            self._note_committed(number)

    def note_commit(self, number: int, sink: ExecutorId) -> None:
        """Note that an instance of a sink has committed a checkpoint, and with it all earlier ones."""
        newest, missing = self._committing
        if number == newest:
            missing.discard(sink)
            if not missing:
                self._note_committed(number)

    def _note_committed(self, number: int) -> None:
        self.committed = number
        self._commit.set()
        self._commit = asyncio.Event()

    async def next_commit(self) -> None:
        """Return when all sinks have committed the next checkpoint."""
        await self._commit.wait()

    async def quiet(self) -> None:
        """Return when no manifest is being written, and no old files are being deleted."""
        async with self.exclusive, self.publishing:
            pass

    @contextmanager
    def keeping(self, number: int) -> Iterator[None]:
        """Keep the files of this checkpoint and of later ones from being swept."""
        self._pins.append(number)
        try:
            yield
        finally:
            self._pins.remove(number)

    @property
    def halts(self) -> bool:
        """Whether sources halt behind the barriers of checkpoints that begin."""
        return self.stopping or self.leaving

    @property
    def kept_from(self) -> int | None:
        """The number from which on all complete checkpoints are kept; None if only the newest ones are."""
        return min(self._pins, default=None)

    def status(self, now: float, ended: bool = False) -> CheckpointStatus:
        """Return where the job stands with its checkpoints.

        Parameters
        ----------
        now : float
            The time, or when the job ended; seconds since the epoch.
        ended : bool, optional
            Whether the job has ended.
        """
        return CheckpointStatus(
            url=shown_url(self.url),
            number=self.newest,
            age=None if self._complete is None else now - self._complete.began,
            complete=self._complete,
            given_up=self._given_up,
            given_up_count=self._given_up_count,
            restarts=self.restarts - self.resumed,
            ended=ended,
        )

    @property
    def failed(self) -> bool:
        """Whether the newest checkpoint was given up."""
        return bool(self.descriptions) and self.descriptions[-1].error is not None

    async def next_end(self) -> None:
        """Return when the next checkpoint is complete, or given up."""
        await self._ended.wait()
