"""The errors of dask_elastic: each says what happened, where, and what to do about it."""

from __future__ import annotations


class ElasticError(Exception):
    """Base of every error that dask_elastic raises on purpose."""


class TopologyError(ElasticError):
    """A topology that cannot run: a cycle, a missing key, two operators of one name."""


class SubmitError(ElasticError):
    """A job that cannot start: an option unknown, logic that cannot be pickled, a name in use."""


class NoWorkers(SubmitError):
    """The cluster has no worker that could host an executor."""


class VersionMismatch(SubmitError):
    """Client, scheduler and workers run versions of dask_elastic that do not fit together."""


class UnknownJob(ElasticError):
    """No job of that name is known to the cluster."""


class UnknownOperator(ElasticError):
    """The job has no operator of that name, or not of the kind that was asked for."""


class SchemaMismatch(ElasticError):
    """A batch does not have the columns or types that its stream has."""


class UserCodeError(ElasticError):
    """User code raised.

    Parameters
    ----------
    operator : str
        The operator whose code raised.
    cause : str
        The exception as text, with its type.
    batch : int or None
        Which of the operator's input batches, counted from 0 in its task.
    row : int or None
        The row within that batch, where it is known.
    trace : str
        The formatted traceback of the user's frames.
    """

    def __init__(self, operator: str, cause: str, batch: int | None = None, row: int | None = None, trace: str = ""):
        self.operator = operator
        self.cause = cause
        self.batch = batch
        self.row = row
        self.trace = trace
        where = "" if batch is None else f", batch {batch}"
        where += "" if row is None else f", row {row}"
        hint = 'Mend the function, or submit with on_error="skip" to set such rows aside.'
        super().__init__(f"operator {operator!r}{where}: {cause}. {hint}" + (f"\n{trace}" if trace else ""))

    def __reduce__(self) -> tuple[type[UserCodeError], tuple[str, str, int | None, int | None, str]]:
        return UserCodeError, (self.operator, self.cause, self.batch, self.row, self.trace)


class NumericOverflow(ElasticError):
    """An integer aggregate left the range of its type."""


class SinkError(ElasticError):
    """A sink could not take what it was given."""


class SourceError(ElasticError):
    """A source could not be read."""


class StateError(ElasticError):
    """Keyed state was used by a task that does not own it, or in a way that its declaration does not allow."""


class MoveRefused(ElasticError):
    """A shard move that cannot be begun: the shard moves already, or the target is no task of the executor."""


class ProtocolError(ElasticError):
    """A message that the protocol does not allow in this state; a bug in dask_elastic, never the user's fault."""


class PlanningError(ElasticError):
    """A planning problem that is not well formed; names the value and the limit."""


class Infeasible(PlanningError):
    """No answer meets all constraints of a planning problem that is well formed.

    Parameters
    ----------
    constraint : str
        The constraint that cannot be met, as the planner's documentation names it.
    detail : str
        Its value and its limit, and what to do.
    """

    def __init__(self, constraint: str, detail: str):
        self.constraint = constraint
        self.detail = detail
        super().__init__(f"constraint {constraint} cannot be met: {detail}")

    def __reduce__(self) -> tuple[type[Infeasible], tuple[str, str]]:
        return Infeasible, (self.constraint, self.detail)


class InvalidPlan(PlanningError):
    """A plan that breaks a rule of its problem; names the rule and the first place where it is broken."""


class UnknownPlanner(PlanningError):
    """No planner has that name."""


class MissingExtra(PlanningError):
    """An optional dependency is not installed; names what needs it and the extra to install."""


class NodeLost(ElasticError):
    """A Dask worker that a job ran on is gone."""


class PoisonBatch(ElasticError):
    """User code that ends its process: two workers died while they had the same rows.

    Parameters
    ----------
    operator : str
        The operator that the rows were for.
    batch : int
        Which batch of the task that had them last.
    """

    def __init__(self, operator: str, batch: int):
        self.operator = operator
        self.batch = batch
        super().__init__(
            f"operator {operator!r}, batch {batch}: two workers died, one after the other, while they processed these "
            "rows. Code that ends its process, such as os._exit or a fault in a C library, does so on every worker: "
            "mend the function. Workers' logs may tell more."
        )

    def __reduce__(self) -> tuple[type[PoisonBatch], tuple[str, int]]:
        return PoisonBatch, (self.operator, self.batch)


class StateMemoryExceeded(ElasticError):
    """The state of a job does not fit into the memory of a worker."""


class JobFailed(ElasticError):
    """The job ended with an error; the message carries its cause."""


class JobStopped(ElasticError):
    """The job was stopped before it had read all of its input."""


class HandoffError(ElasticError):
    """Another engine's rows could not be handed over: nobody takes them, or what was staged is gone."""


class EpochConflict(HandoffError):
    """An epoch came again with other rows than those that were committed."""
