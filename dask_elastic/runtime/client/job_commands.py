"""What a job's handle changes while the job runs, cores, shards and homes of executors, and its checkpoints."""

from __future__ import annotations

import contextlib
import operator as operators
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.runtime.protocol import group_calls, job_calls
from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.protocol.job_status import ENDED_NAMES, Status
from dask_elastic.vocab.errors import MoveRefused

STOPPED = Status.STOPPED.value


def unchanged(job: str, status: str, what: str) -> str:
    """Return that nothing of a job changes because it has ended; empty if it has not.

    Examples
    --------
    >>> unchanged("words", "finished", "cores"), unchanged("words", "running", "cores")
    ("job 'words' has finished: its cores do not change", '')
    """
    if status not in ENDED_NAMES:
        return ""
    return f"job {job!r} has {'been stopped' if status == STOPPED else status}: its {what} do not change"


class JobCommands(ABC):
    """The part of `Job` that changes executors and takes checkpoints."""

    name: str

    @abstractmethod
    def _ask(self, call: Call[B], /) -> B:
        """Call the scheduler."""

    def set_cores(
        self, operator: str, cores: int | dict[str, int] | Literal["auto"], executor: int | None = None
    ) -> None:
        """Set the cores of executors while they run; the control loop then no longer changes them.

        Parameters
        ----------
        operator : str
            Name of a stateful operator.
        cores : int or dict of str to int or "auto"
            The number of cores of each executor, allocated first on its home; or the cores on each worker, by address;
            or ``"auto"``, which returns the executors to the control loop. If there are not enough free slots,
            executors share slots and the job is ``oversubscribed``; an executor has at most as many cores as the
            workers of the job have slots. Cores on other workers than the home have shards while the load is not light,
            see ``light_load``, and several cores of a worker while that is faster, see ``gather_shards``.
        executor : int, optional
            Number of one executor of the operator; all of them if left out.

        Raises
        ------
        UnknownOperator
            If the job has no such stateful operator, or no such executor of it.
        MoveRefused
            If the executor is no number.
        PlanningError
            If the cores are no number, are more than there are slots, or are on a worker that the job does not have or
            that is about to leave; or if the job is restarting, or has another paradigm than ``"executor-centric"``.
        NodeLost
            If a worker that is to have the cores has left the cluster.

        Warns
        -----
        UserWarning
            If the job has ended: nothing changes. A job that ends meanwhile is no error of the program.
        """
        number = None if executor is None else _whole("executor", executor)
        described = self._ask(job_calls.SetCores(self.name, operator, cores, number))
        self._warn_ended(described.status.value, "cores")

    def move_shard(self, operator: str, shard: int, task: int, executor: int = 0) -> None:
        """Move a shard to another task of its executor; return when the move has begun.

        Parameters
        ----------
        operator : str
            Name of a stateful operator.
        shard, task : int
            The shard and its new task; `assignment` lists both.
        executor : int
            Number of their executor.

        Raises
        ------
        MoveRefused
            If there is no such shard or task, or something is no number; if the shard or the executor is moving, the
            task is being drained, or the job is restarting.
        UnknownOperator
            If the job has no such stateful operator, or no such executor of it.
        PlanningError
            If the job has another paradigm than ``"executor-centric"``.

        Warns
        -----
        UserWarning
            If the job has ended: nothing moves. A job that ends meanwhile is no error of the program.
        """
        numbers = _whole("executor", executor), _whole("shard", shard), _whole("task", task)
        self._warn_ended(self._ask(job_calls.MoveShard(self.name, operator, *numbers)), "shards")

    def _warn_ended(self, status: str, what: str) -> None:
        if text := unchanged(self.name, status, what):
            warnings.warn(text, stacklevel=3)

    def move_executor(self, operator: str, index: int, worker: str) -> None:
        """Move an executor with its state to another worker while the job runs; return when it has begun there.

        The new worker becomes the executor's home. Its cores follow as far as there are free slots. No row is lost or
        processed twice, and rows keep their order; rows of this executor wait for the time that `decisions` shows.
        Sources and sinks stay where they are. The move begins when the checkpoint in progress has ended.

        Parameters
        ----------
        operator : str
            Name of a stateful operator.
        index : int
            Number of the executor.
        worker : str
            Address of the worker, which may have joined the cluster after the job has started.

        Raises
        ------
        MoveRefused
            If the worker does not exist, is retired or paused, or is the executor's home already; if another executor
            of the job is moving; or if the job is not running or about to end. Nothing is changed.
        UnknownOperator
            If the job has no such stateful operator, or no such executor of it.
        NodeLost
            If the worker is lost before the executor has left its home. Nothing is changed.
        JobEnded
            If the job has ended, also meanwhile.
        PlanningError
            If the job has the paradigm ``"static"``, or is restarted meanwhile.

        Notes
        -----
        If the old or the new worker is lost during the move, a job with checkpoints restarts from the newest one, and
        any other job fails. After a restart, an executor is where it was moved to, if this worker is left.

        Examples
        --------
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask.distributed import Client
        >>> topology = de.Topology("letters")
        >>> letters = topology.source("letters", de.sources.Push(pa.schema({"letter": pa.string()})))
        >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter", executors=1)
        >>> with Client(n_workers=2, processes=False, dashboard_address=None) as client:
        ...     job = de.submit(topology, client)
        ...     job.send(pa.table({"letter": list("abba")}))
        ...     before = job.assignment()["home"][0]
        ...     [other] = client.nthreads().keys() - {before}
        ...     job.move_executor("per_letter", 0, other)
        ...     after = job.assignment()["home"][0]
        ...     job.drain()
        ...     print(after == other, job.state("per_letter").get("b"))
        True {'letter': 'b', 'seen': 2}
        """
        self._ask(job_calls.MoveExecutor(self.name, operator, _whole("index", index), worker))

    def move_groups(
        self,
        operator: str,
        groups: Iterable[int],
        executor: int,
        migration: Literal["progressive", "synchronised"] | None = None,
    ) -> group_calls.MovedGroups:
        """Move key groups with their state to another executor while the job runs; return when they are there.

        No row is lost or processed twice, and rows keep their order. The move begins when the checkpoint in progress
        has ended, and the next checkpoint after the move.

        Parameters
        ----------
        operator : str
            Name of a stateful operator.
        groups : iterable of int
            The key groups, from 0 to ``shards`` - 1; `assignment` lists those of each executor as its shards.
        executor : int
            Number of their next executor.
        migration : {"progressive", "synchronised"}, optional
            How they move; as the job was submitted by default, and progressively if that was with ``"auto"``.

        Returns
        -------
        MovedGroups
            The number of groups, bytes of their state, seconds for which rows of a group waited at most, and seconds
            that the whole move took.

        Raises
        ------
        MoveRefused
            If there is no such group, executor or strategy, or groups and executor are no numbers; if a group is there
            already, other groups of the job are moving, or an executor has got its last row; also if the job has
            another paradigm than ``"resource-centric"``, or is not running. Nothing is changed.
        UnknownOperator
            If the job has no such stateful operator.
        JobEnded
            If the job has ended, also meanwhile.
        PlanningError
            If the job is restarted meanwhile.

        Notes
        -----
        State migration, section 3.2. If a worker is lost while groups move, a job with checkpoints restarts from the
        newest one, and any other job fails. A checkpoint has which executor owns which groups; a job that continues
        from it begins so.

        Examples
        --------
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask.distributed import Client
        >>> topology = de.Topology("letters")
        >>> letters = topology.source("letters", de.sources.Push(pa.schema({"letter": pa.string()})))
        >>> counts = {"seen": de.aggregate.Count()}
        >>> counted = letters.key_by("letter").compute(counts, name="per_letter", executors=2, shards=4)
        >>> with Client(n_workers=2, processes=False, dashboard_address=None) as client:
        ...     job = de.submit(topology, client, paradigm="resource-centric")
        ...     job.send(pa.table({"letter": list("abba")}))
        ...     moved = job.move_groups("per_letter", [0, 1], executor=1)
        ...     owned = job.assignment()["shards"].tolist()
        ...     job.drain()
        ...     print(moved.groups, owned, job.state("per_letter").get("b"))
        2 [[], [0, 1, 2, 3]] {'letter': 'b', 'seen': 2}
        """
        try:
            wanted = tuple(operators.index(group) for group in groups)
        except TypeError as error:
            raise MoveRefused(f"{operator!r}: groups={groups!r}: give the numbers of its groups, as [0, 1]") from error
        try:
            to = operators.index(executor)
        except TypeError as error:
            raise MoveRefused(f"{operator!r}: executor={executor!r}: give the number of an executor") from error
        return self._ask(group_calls.MoveGroups(self.name, operator, wanted, to, migration))

    def checkpoint(self) -> int:
        """Take a checkpoint now, and return its number when it is complete.

        Returns
        -------
        int
            The number.

        Raises
        ------
        CheckpointError
            If it was given up, or the job takes no checkpoints.
        JobEnded
            If the job has ended.

        Examples
        --------
        >>> import tempfile
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask.distributed import Client
        >>> topology = de.Topology("letters")
        >>> letters = topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a", "b"]}), rate=1))
        >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter")
        >>> with (
        ...     tempfile.TemporaryDirectory() as folder,
        ...     Client(n_workers=1, processes=False, dashboard_address=None) as client,
        ... ):
        ...     job = de.submit(topology, client, checkpoint=folder)
        ...     number = job.checkpoint()
        ...     int(job.checkpoints()["number"].max()) == number
        True
        """
        return self._ask(job_calls.TakeCheckpoint(self.name)).number

    def savepoint(self, url: str | os.PathLike[str]) -> int:
        """Take a checkpoint, and copy it to a folder of its own, which stays until you delete it.

        Parameters
        ----------
        url : str or path
            A new folder, local or a URL, that the scheduler can write to. `resume` continues from it, also with another
            topology, while or after this job runs.

        Returns
        -------
        int
            The number of the checkpoint.

        Raises
        ------
        CheckpointError
            If the checkpoint was given up, the folder has a checkpoint already or cannot be written, or the job takes
            no checkpoints.
        JobEnded
            If the job has ended.

        Examples
        --------
        >>> import tempfile
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask.distributed import Client
        >>> topology = de.Topology("letters")
        >>> letters = topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a", "b"]}), rate=1))
        >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter")
        >>> with (
        ...     tempfile.TemporaryDirectory() as folder,
        ...     tempfile.TemporaryDirectory() as saved,
        ...     tempfile.TemporaryDirectory() as continued,
        ...     Client(n_workers=1, processes=False, dashboard_address=None) as client,
        ... ):
        ...     job = de.submit(topology, client, checkpoint=folder)
        ...     number = job.savepoint(saved)
        ...     job.stop()
        ...     de.resume(saved, client, checkpoint=continued).status
        'running'
        """
        return self._ask(job_calls.TakeSavepoint(self.name, CheckpointFolder(url).url)).number


def _whole(name: str, given: object) -> int:
    """Return the number of a shard, a task or an executor; numbers of NumPy, as in a table, are some, too."""
    if not isinstance(given, bool):
        with contextlib.suppress(TypeError):
            return operators.index(given)  # type: ignore[arg-type]
    raise MoveRefused(f"{name}={given!r}: give a whole number; `assignment` lists executors, tasks and shards")
