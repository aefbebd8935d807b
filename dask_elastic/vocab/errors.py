"""The exceptions of dask_elastic. Each message says what happened, where, and what to do."""

from __future__ import annotations

import difflib


class ElasticError(Exception):
    """Base class of all errors that dask_elastic raises on purpose.

    Examples
    --------
    >>> import dask_elastic as de
    >>> try:
    ...     de.Topology("")
    ... except de.ElasticError as error:
    ...     print(error)
    topology: the name is empty; give it one that says what it does.
    """


class TopologyError(ElasticError):
    """The topology cannot run: it has a cycle, an operator without input, an invalid option, or a duplicate name."""


class SubmitError(ElasticError):
    """The job cannot start: an option is unknown, user code cannot be pickled, or the job's name is in use."""


class NoWorkers(SubmitError):
    """The cluster has no worker that could host an executor."""


class VersionMismatch(SubmitError):
    """Client, scheduler and workers run incompatible versions of dask_elastic."""


class UnknownJob(ElasticError):
    """The cluster has no job of that name."""


class UnknownOperator(ElasticError):
    """The job has no operator of that name, or the operator is of another kind than requested."""


class SchemaMismatch(ElasticError):
    """A batch does not have the columns or types of its stream."""


class BatchTooLarge(ElasticError):
    """A row, or a few that cannot be sent apart, is too large for the worker of its source."""


class UserCodeError(ElasticError):
    """User code raised an exception.

    Parameters
    ----------
    operator : str
        The operator whose code raised.
    cause : str
        The type and text of the exception.
    batch : int or None
        The input batch, counted from 0 within its task; None if it is not known.
    row : int or None
        The row within that batch; None if it is not known.
    trace : str
        The formatted traceback of the user's frames.
    key : str or None
        The key with which the code was called, as text; None if it is not called per key.
    of_rows : bool
        Whether ``on_error="skip"`` would move the rows on which it is raised to the dead letters: it does not catch
        what ends threads, such as `SystemExit`.

    Examples
    --------
    >>> print(UserCodeError("per_plane", "ValueError: a delay of -5", batch=3, key="'N12'"))
    operator 'per_plane', batch 3, key 'N12': ValueError: a delay of -5. Fix the function, or submit with
    on_error="skip" to move such rows to the dead letters.
    """

    def __init__(
        self,
        operator: str,
        cause: str,
        batch: int | None = None,
        row: int | None = None,
        trace: str = "",
        key: str | None = None,
        of_rows: bool = True,
    ):
        self.operator = operator
        self.cause = cause
        self.batch = batch
        self.row = row
        self.trace = trace
        self.key = key
        self.of_rows = of_rows
        where = "" if batch is None else f", batch {batch}"
        where += "" if row is None else f", row {row}"
        where += "" if key is None else f", key {key}"
        skip = 'Fix the function, or submit with on_error="skip" to move such rows to the dead letters.'
        ends = "Fix the function: let it raise an Exception, as ValueError, where a row is at fault."
        hint = skip if of_rows else ends
        super().__init__(f"operator {operator!r}{where}: {cause.rstrip('.')}. {hint}" + (f"\n{trace}" if trace else ""))

    def __reduce__(self) -> tuple[type[UserCodeError], tuple[str, str, int | None, int | None, str, str | None, bool]]:
        return UserCodeError, (self.operator, self.cause, self.batch, self.row, self.trace, self.key, self.of_rows)


class NumericOverflow(ElasticError):
    """An integer aggregate overflowed its type."""


class SinkError(ElasticError):
    """A sink could not be opened or written, or has no rows to collect."""


class SourceError(ElasticError):
    """A source could not be read."""


class ColumnMissing(SourceError):
    """A source does not have a column that is to be read.

    Parameters
    ----------
    source : str
        The source, as text.
    column : str
        The column.
    present : tuple of str
        The columns that it has.

    Examples
    --------
    >>> print(ColumnMissing("Parquet('flights')", "dely", ("plane", "delay")))
    Parquet('flights') has no column 'dely'; it has 'plane', 'delay': did you mean 'delay'?
    """

    def __init__(self, source: str, column: str, present: tuple[str, ...]):
        self.source = source
        self.column = column
        self.present = present
        close = difflib.get_close_matches(column, present, 1)
        hint = f": did you mean {close[0]!r}?" if close else "."
        super().__init__(f"{source} has no column {column!r}; it has {', '.join(map(repr, present)) or 'none'}{hint}")

    def __reduce__(self) -> tuple[type[ColumnMissing], tuple[str, str, tuple[str, ...]]]:
        return ColumnMissing, (self.source, self.column, self.present)


class StateError(ElasticError):
    """Keyed state was used by a task that does not own it, or in a way that its declaration does not allow."""


class StateValueError(StateError):
    """User code gave keyed state a value that does not fit the declaration: a failure of the row, as any exception."""


class MoveRefused(ElasticError):
    """A shard or an executor cannot move: it is moving already, or the target cannot take it."""


class ProtocolError(ElasticError):
    """A message violates the protocol in the current state. This is a bug in dask_elastic, never in user code."""


class PlanningError(ElasticError):
    """A planning problem is invalid; the message names the value and its limit."""


class Infeasible(PlanningError):
    """A valid planning problem has no solution that meets all constraints.

    Parameters
    ----------
    constraint : str
        The constraint that cannot be met, as the planner's documentation names it.
    detail : str
        Its value, its limit, and what to do.

    Examples
    --------
    >>> print(Infeasible("load balancing", "task 2 alone has a load of 4.0; raise tau to 1.5."))
    constraint load balancing cannot be met: task 2 alone has a load of 4.0; raise tau to 1.5.
    """

    def __init__(self, constraint: str, detail: str):
        self.constraint = constraint
        self.detail = detail
        super().__init__(f"constraint {constraint} cannot be met: {detail}")

    def __reduce__(self) -> tuple[type[Infeasible], tuple[str, str]]:
        return Infeasible, (self.constraint, self.detail)


class InvalidPlan(PlanningError):
    """A plan violates a rule of its problem; the message names the rule and the first violation."""


class UnknownPlanner(PlanningError):
    """No planner has that name."""


class MissingExtra(PlanningError):
    """An optional dependency is not installed; names what needs it and the extra to install."""


class NodeLost(ElasticError):
    """The job lost a Dask worker on which it ran."""


class SchedulerLost(ElasticError):
    """The client has lost the connection to Dask's scheduler. If the scheduler has ended, so have its jobs."""


class PoisonBatch(ElasticError):
    """User code terminated its process: two workers died while processing the same rows.

    Parameters
    ----------
    operator : str
        The operator that processed the rows.
    batch : str
        The batch: how many rows, some of their keys, and the sources or operators that they come from.

    Examples
    --------
    >>> print(PoisonBatch("per_plane", "2 rows with the key 'N12', from flights[0]"))
    operator 'per_plane': two workers died, one after the other, while processing 2 rows with the key 'N12', from
    flights[0]. Code that terminates its process, such as os._exit or a crash in a C library, does so on every worker:
    fix the function; the workers' logs may show the cause.
    """

    def __init__(self, operator: str, batch: str):
        self.operator = operator
        self.batch = batch
        super().__init__(
            f"operator {operator!r}: two workers died, one after the other, while processing {batch}. Code that "
            "terminates its process, such as os._exit or a crash in a C library, does so on every worker: fix the "
            "function; the workers' logs may show the cause."
        )

    def __reduce__(self) -> tuple[type[PoisonBatch], tuple[str, str]]:
        return PoisonBatch, (self.operator, self.batch)


class StateMemoryExceeded(ElasticError):
    """The state of a job does not fit into the memory of a worker."""


class StateDiskError(ElasticError):
    """A file of state on disk could not be made, extended or read; the message names the folder and the fix."""


class JobFailed(ElasticError):
    """The job failed; the message gives the cause."""


class JobEnded(ElasticError):
    """The job has finished or was stopped, and takes no more rows."""


class JobStopped(ElasticError):
    """The job was stopped before it had read all of its input."""


class HandoffError(ElasticError):
    """The handoff of an epoch failed: no job accepts its rows, or staged rows were lost."""


class BatchMismatch(HandoffError):
    """An epoch was delivered again with rows that differ from those that were committed."""


class SourceReset(HandoffError):
    """A streaming query skips epochs that the job does not have, or repeats input that the job has."""


class CheckpointError(ElasticError):
    """A checkpoint could not be written or read; the message names the file or URL, what failed, and the fix."""


class CheckpointCorrupt(CheckpointError):
    """A file of a checkpoint is missing or damaged.

    Parameters
    ----------
    path : str
        The file, with the URL of its folder.
    wanted : str
        What the file should be: its size or checksum.
    got : str
        What was found instead.

    Examples
    --------
    >>> print(CheckpointCorrupt("/data/delays/state/7/planes-0.arrows", "4,096 bytes", "no such file"))
    checkpoint file /data/delays/state/7/planes-0.arrows is damaged: wanted 4,096 bytes, got no such file. Resume from
    an older checkpoint, or restore the file from a backup of the storage.
    """

    def __init__(self, path: str, wanted: str, got: str):
        self.path = path
        self.wanted = wanted
        self.got = got
        super().__init__(
            f"checkpoint file {path} is damaged: wanted {wanted}, got {got}. Resume from an older checkpoint, or "
            "restore the file from a backup of the storage."
        )

    def __reduce__(self) -> tuple[type[CheckpointCorrupt], tuple[str, str, str]]:
        return CheckpointCorrupt, (self.path, self.wanted, self.got)


class CheckpointSuperseded(CheckpointError):
    """A later run of the job has begun, so that this checkpoint, or this run of the job, must not be used."""


class NoCheckpoint(CheckpointError):
    """The folder contains no complete checkpoint."""
