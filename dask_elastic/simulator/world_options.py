"""How a simulated job runs: its bounds, how long things take, and what is checked."""

from __future__ import annotations

from dataclasses import dataclass, field

from dask_elastic.executor.error_policy import OnError
from dask_elastic.executor.limits import ExecutorLimits


@dataclass(frozen=True)
class WorldOptions:
    """How a simulated job runs.

    Parameters
    ----------
    window : int
        Bytes that an upstream instance may have in flight to one executor.
    row_seconds : float
        Mean virtual time that a row keeps a core busy.
    step_seconds : float
        Mean virtual time between two steps.
    on_error : {"fail", "skip"}
        What to do with rows on which user code fails.
    limits : ExecutorLimits
        What bounds an executor.
    check : bool
        Whether to check the invariants after every step.
    history : bool
        Whether to remember every step.
    torn : bool
        Whether drivers run without their control lock, so that the instructions of different events interleave, which
        the executor does not allow. Tests use it to show that the checks find this.
    leaves : float
        The share of inline runs, and of feeds of remote tasks, that another fiber carries out instead of the caller.
    order : tuple of str
        See `Ledger`.
    repeats : float
        The share of messages between homes and remote tasks that are delivered twice.
    pauses : float
        The share of steps after which a slow fiber is paused; see `Schedule`.
    event_time : str
        See `EventTimes`.
    rests : float
        The share of batches after which a source with event time declares itself idle for some steps.
    tick : float
        Seconds between two ticks of the clock by which timers in processing time fire.
    resource_centric : bool
        Whether the shards of each operator are key groups, which move from one executor to another; executors then have
        one core each.
    """

    window: int = 2**22
    row_seconds: float = 0.0005
    step_seconds: float = 0.001
    on_error: OnError = "fail"
    limits: ExecutorLimits = field(default_factory=ExecutorLimits)
    check: bool = False
    history: bool = False
    torn: bool = False
    leaves: float = 0.0
    order: tuple[str, ...] = ()
    repeats: float = 0.0
    pauses: float = 0.0
    event_time: str = ""
    rests: float = 0.0
    tick: float = 0.01
    resource_centric: bool = False
