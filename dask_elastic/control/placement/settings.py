"""Settings of the placement loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.numbers import as_seed, is_number, is_whole


@dataclass(frozen=True)
class PlacementSettings:
    """How often and how cautiously homes follow load and traffic.

    Parameters
    ----------
    period : float
        Seconds between two decisions; loads and traffic are means over them. Longer than the period of cores.
    patience : int
        Decisions in a row that must find a plan worthwhile before homes move, at least 1.
    cooldown : float
        Seconds for which a home stays after a move, and for which placements are expected to last at least.
    least_gain : float
        A plan is worthwhile if it lowers the load distance by this share of the mean load, or keeps this share of the
        traffic within nodes in addition.
    least_use : float
        Below this share of its capacity the most used resource is no reason for a move.
    max_moves : int
        Homes that may move in one period. Homes of one job move one after the other. Of key groups, how many a node
        sends, and how many it gets, at a time.
    budget_bytes : float
        Bytes of state that may leave their node in one period.
    bandwidth : float
        Bytes per second that a node can send and receive.
    transfer : float
        Bytes per second at which state moves.
    handover : float
        Seconds for which the rows of an executor wait while its home moves, besides the transfer of its state.
    hop : float
        Seconds of a round trip to a task that is not at home, assumed until one is measured.
    locality_threshold : float
        Bytes in and out per second and core above which all cores of an executor are at home: its shards do not move
        instead of its home.
    tau : float
        How far the load of a node may exceed the mean, as a share of it, where nodes have consecutive executors.
    discount : float
        The weight of the cost of the next migration against that of the present one, for placement ``"mtm"``.
    windows : int
        Earlier periods whose loads planners see that separate executors with correlated loads.
    memory_share : float
        The part of a node's memory that state may take.
    scales : bool
        Whether nodes that the load does not need are marked for removal and drained. Without it, too few or too many
        nodes are only reported.
    seed : int
        Seed of the planners.

    Raises
    ------
    PlanningError
        If a value is not a finite number or is out of range.

    Notes
    -----
    ALBIC, sections 3 and 4.1 (statistics period, migration budget, integrative loop); State migration, Definitions 4.1
    and 5.4 (τ, γ).

    Examples
    --------
    >>> PlacementSettings().period
    10.0
    >>> PlacementSettings(period=0)
    Traceback (most recent call last):
    ...
    dask_elastic.vocab.errors.PlanningError: period is 0: give a finite number above 0.
    """

    period: float = 10.0
    patience: int = 2
    cooldown: float = 60.0
    least_gain: float = 0.05
    least_use: float = 0.05
    max_moves: int = 4
    budget_bytes: float = 512 * 1024 * 1024
    bandwidth: float = 1e9
    transfer: float = 200e6
    handover: float = 0.05
    hop: float = 1e-3
    locality_threshold: float = 512 * 1024
    tau: float = 0.2
    discount: float = 0.8
    windows: int = 12
    memory_share: float = 0.4
    scales: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        above = {"period", "bandwidth", "transfer", "memory_share"}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("scales", "seed"):
                continue
            if not (is_number(value) and math.isfinite(value)) or value < 0 or (field.name in above and value == 0):
                allowed = "above 0" if field.name in above else "of 0 or more"
                raise PlanningError(f"{field.name} is {value!r}: give a finite number {allowed}.")
        for name in ("patience", "max_moves", "windows"):
            value = getattr(self, name)
            if not (is_whole(value) and value >= 1):
                raise PlanningError(f"{name} is {value!r}: give a whole number of 1 or more.")
        if self.discount >= 1:
            raise PlanningError(f"discount is {self.discount!r}: give less than 1.")
        as_seed(self.seed)
