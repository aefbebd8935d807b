"""How a simulated job runs: its bounds, how long things take, and what is checked."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.executor.error_policy import OnError
from dask_elastic.executor.limits import ExecutorLimits


@dataclass(frozen=True)
class WorldOptions:
    """How a simulated job runs.

    Parameters
    ----------
    window : int
        Bytes that an upstream instance may have unprocessed at one executor.
    row_seconds : float
        Mean virtual time that a row keeps a core busy.
    step_seconds : float
        Mean virtual time between two steps.
    on_error : {"fail", "skip"}
        What becomes of rows that user code cannot digest.
    limits : ExecutorLimits, optional
        What bounds an executor.
    check : bool
        Whether to check the invariants after every step.
    torn : bool
        Whether the instructions of one event may be interleaved with those of others. The executor does not promise
        anything then; it is for tests of the checks.
    order : tuple of str
        See `Ledger`.
    repeats : float
        The share of messages between homes and remote tasks that come twice.
    event_time : str
        See `EventTimes`.
    rests : float
        How often, beside a batch, a source with event time says that it is idle, and goes on a while later.
    """

    window: int = 2**22
    row_seconds: float = 0.0005
    step_seconds: float = 0.001
    on_error: OnError = "fail"
    limits: ExecutorLimits | None = None
    check: bool = False
    torn: bool = False
    order: tuple[str, ...] = ()
    repeats: float = 0.0
    event_time: str = ""
    rests: float = 0.0
