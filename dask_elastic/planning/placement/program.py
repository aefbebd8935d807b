"""The mixed-integer linear program of balance for HiGHS, for all groups and bins or for a part of them.

Goal
    One place for the program's columns and rows, the solver's options, and the reading of its answer.
Method
    A 0-1 variable for each group and bin it may be on, the shares of the bins, and d, U and L: the load distance, the
    upper and the lower deviation. U is what the paper writes as d − d_u, L as d − d_l. Shares are in units of the mean.
    Groups and bins outside of the part stay as they are, and what they spend is subtracted from the budget.
Not done
    The choice of the part: `dask_elastic.planning.placement.neighbourhood`.

Notes
-----
ALBIC, section 4.3.1, corrected by its first and second erratum: d_u and d_l are 0 at least; there is no constraint
(5); the mean is exact and by capacity; no group goes to a draining bin; w₃ times the load on draining bins is a term of
the objective, with w₁ ≫ w₃ ≫ w₂.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from dask_elastic.planning.extras import require
from dask_elastic.planning.placement.problem import Floats, Ints, Mask, PlacementProblem

Weights: TypeAlias = tuple[float, float, float]

BALANCE_FIRST: Weights = (1.0, 1e-4, 1e-6)
"""The weights w₁ of the load distance, w₃ of what is left to drain, w₂ of the two deviations."""

DRAIN_FIRST: Weights = (1e-3, 1.0, 1e-6)
"""The weights where only draining can be gained."""


@dataclass(frozen=True)
class Limits:
    """The limits of a run of the solver.

    Parameters
    ----------
    seconds : float or None
        Seconds, None for no limit.
    nodes : int or None
        Nodes of the branch-and-bound tree.
    gap : float
        The relative difference to the optimum at which it stops.
    """

    seconds: float | None = None
    nodes: int | None = None
    gap: float = 1e-6


@dataclass(frozen=True, eq=False)
class Answer:
    """The solver's answer.

    Parameters
    ----------
    bin : array of int or None
        The bin of each group of the whole problem; None if there is no answer.
    proven : bool
        Whether it is optimal for the free part, within the gap.
    seconds : float
        The solver's run time.
    """

    bin: Ints | None
    proven: bool
    seconds: float


class Program:
    """The program for a part of a problem.

    Parameters
    ----------
    problem : PlacementProblem
        The whole problem.
    weights : tuple of float
        `BALANCE_FIRST` or `DRAIN_FIRST`.
    start : array of int
        A valid answer; the solver starts from it, and whatever is not free stays as in it.
    groups : array of int, optional
        The groups that are free; all if left out.
    bins : array of int, optional
        The bins that stay and that free groups may go to; all that stay if left out.
    strict : bool
        Keep the limits of bins even where new groups exceed them at the start.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        weights: Weights,
        start: Ints,
        groups: Ints | None = None,
        bins: Ints | None = None,
        strict: bool = False,
    ):
        problem.pause()
        self._problem = problem
        self._strict = strict
        self._weights = weights
        self._start = start
        self._unit = problem.mean if problem.mean > 0 else 1.0
        self._bins = np.flatnonzero(problem.live) if bins is None else bins
        self._free = np.arange(problem.groups) if groups is None else groups
        fixed: Mask = np.ones(problem.groups, dtype=np.bool_)
        fixed[self._free] = False
        self._fixed = fixed
        self._base = problem.totals(np.where(fixed, start, -1))
        self._row, self._bin = (index.astype(np.int64) for index in np.nonzero(self._choices()))
        self._group = self._free[self._row]

    def solve(self, limits: Limits, seed: int) -> Answer:
        """Run the solver; if it fails, the answer has no bins.

        Parameters
        ----------
        limits : Limits
            The limits of the run.
        seed : int
            The solver's seed.

        Returns
        -------
        Answer
            The bins may break a rule within the solver's tolerances: check them with the validator.

        Raises
        ------
        MissingExtra
            If HiGHS is not installed.

        Warns
        -----
        RuntimeWarning
            If the solver raised, with its error.
        """
        highs = require("highspy", "the mixed-integer program")
        model, guess = self._model(highs, self._problem.pause), self._values().tolist()
        try:
            values, proven, seconds = _solved(highs, model, guess, _options(limits, seed), self._problem.pause)
        except Exception as error:
            # A plan is needed whatever the solver raises: the greedy answer is used.
            warnings.warn(f"HiGHS failed, so the plan is made without it: {error!r}", RuntimeWarning, stacklevel=2)
            return Answer(None, False, 0.0)
        bin = self._read(values)
        return Answer(bin, proven and bin is not None, seconds)

    def _read(self, values: Floats) -> Ints | None:
        """Return the bins by the columns; None unless they give one for each free group."""
        if len(values) < len(self._row):
            return None
        chosen = np.flatnonzero(values[: len(self._row)] > 0.5)
        if len(chosen) != len(self._free) or (self._row[chosen] != np.arange(len(self._free))).any():
            return None
        bin = self._start.copy()
        bin[self._free] = self._bin[chosen]
        return bin

    def _choices(self) -> Mask:
        """Return the bins of each free group: the free ones, its own, and in the whole program its first one."""
        problem, free = self._problem, self._free
        choices = np.zeros((len(free), problem.bins), dtype=np.bool_)
        choices[:, self._bins] = True
        choices[problem.pinned[free] & problem.placed[free]] = False
        choices[np.arange(len(free)), self._start[free]] = True
        if len(free) == problem.groups:
            placed = np.flatnonzero(problem.placed)
            choices[placed, problem.current[placed]] = True
        return choices

    def _shares(self) -> Floats:
        """Return the shares of the free bins at the start, in units of the mean."""
        result: Floats = self._problem.shares(self._start)[self._bins] / self._unit
        return result

    def _values(self) -> Floats:
        """Return the columns' values at the start."""
        shares, mean = self._shares(), self._problem.mean / self._unit
        upper, lower = float((shares - mean).max()), float((mean - shares).max())
        chosen = (self._start[self._group] == self._bin).astype(np.float64)
        return np.concatenate([chosen, shares, [max(upper, lower, 0.0), upper, lower]])

    def _costs(self) -> Floats:
        problem, (balance, drain, spread) = self._problem, self._weights
        whole = problem.to_drain(problem.current)
        stranded = problem.draining[self._bin] * problem.burden[self._group] / (whole if whole > 0 else 1.0)
        return np.concatenate([drain * stranded, np.zeros(len(self._bins)), [balance, spread, spread]])

    def _model(self, highs: Any, pause: Callable[[], None]) -> Any:
        pause()
        rows, low, high = self._rows()
        pause()
        matrix = sp.vstack(rows, format="csc")
        pause()
        columns, pairs = matrix.shape[1], len(self._group)
        lp = highs.HighsLp()
        lp.num_col_, lp.num_row_ = columns, matrix.shape[0]
        lp.col_cost_ = self._costs()
        lower, upper = np.zeros(columns), np.full(columns, np.inf)
        upper[:pairs] = 1
        lower[-2:] = -np.inf
        resource = self._problem.bottleneck
        upper[pairs:-3] = self._most()[:, resource] / self._problem.strength[self._bins] / self._unit
        lp.col_lower_, lp.col_upper_ = lower, upper
        pause()
        lp.row_lower_, lp.row_upper_ = np.concatenate(low), np.concatenate(high)
        lp.a_matrix_.format_ = highs.MatrixFormat.kColwise
        lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
        # HiGHS copies lists faster than arrays, of which it asks for each number.
        index, value = matrix.indices.tolist(), matrix.data.tolist()
        pause()
        lp.a_matrix_.index_ = index
        pause()
        lp.a_matrix_.value_ = value
        pause()
        whole, real = highs.HighsVarType.kInteger, highs.HighsVarType.kContinuous
        lp.integrality_ = [whole] * pairs + [real] * (columns - pairs)
        pause()
        return lp

    def _most(self) -> Floats:
        """Return the limits of the free bins; new groups may have exceeded a capacity."""
        problem = self._problem
        most = problem.limit if self._strict else np.maximum(problem.limit, problem.totals(self._start))
        result: Floats = most[self._bins]
        return result

    def _rows(self) -> tuple[list[Any], list[Floats], list[Floats]]:
        """Return blocks of rows with their lower and upper bounds."""
        problem, bins, pairs = self._problem, self._bins, len(self._group)
        every, one, free = np.arange(len(bins)), np.ones(len(bins)), np.full(len(bins), np.inf)
        share, (d, up, down) = pairs + every, pairs + len(bins) + np.arange(3)
        inside, at = self._inside()
        load = problem.weight[self._group[inside]] / problem.strength[self._bin[inside]] / self._unit
        base = self._base[bins, problem.bottleneck] / problem.strength[bins] / self._unit
        mean = np.full(len(bins), problem.mean / self._unit)
        single = np.ones(len(self._free))
        rows = [
            self._block(len(self._free), (self._row, np.arange(pairs), np.ones(pairs))),
            self._block(len(bins), (at, inside, load), (every, share, -one)),
            self._block(len(bins), (every, share, one), (every, np.full(len(bins), up), -one)),
            self._block(len(bins), (every, share, one), (every, np.full(len(bins), down), one)),
            self._block(2, ([0, 1], [d, d], [1.0, 1.0]), ([0, 1], [up, down], [-1.0, -1.0])),
        ]
        low, high = [single, -base, -free, mean, np.zeros(2)], [single, -base, mean, free, np.full(2, np.inf)]
        for part in (self._other_resources(inside, at), self._budgets()):
            for block, least, most in part:
                rows.append(block)
                low.append(least)
                high.append(most)
        return rows, low, high

    def _inside(self) -> tuple[Ints, Ints]:
        """Return the pairs whose bin is free, and its position among the free bins."""
        position = np.full(self._problem.bins, -1)
        position[self._bins] = np.arange(len(self._bins))
        inside = np.flatnonzero(position[self._bin] >= 0)
        return inside, position[self._bin[inside]]

    def _other_resources(self, inside: Ints, at: Ints) -> Iterator[tuple[Any, Floats, Floats]]:
        """Yield the rows that keep the resources other than the balanced one within capacity."""
        problem, bins, limit = self._problem, self._bins, self._most()
        for resource in range(problem.loads.shape[1]):
            most = limit[:, resource]
            if resource != problem.bottleneck and np.isfinite(most).any():
                load = problem.loads[self._group[inside], resource] / most[at]
                room = 1 - self._base[bins, resource] / most
                yield self._block(len(bins), (at, inside, load)), np.full(len(bins), -np.inf), room

    def _budgets(self) -> Iterator[tuple[Any, Floats, Floats]]:
        """Yield the rows of the budgets, as the least that must stay."""
        problem, free = self._problem, self._free
        stays = np.flatnonzero((self._bin == problem.current[self._group]) & problem.placed[self._group])
        spent = self._fixed & problem.moved(self._start)
        for budget, prices in ((problem.max_moves, problem.size), (problem.max_cost, problem.state_bytes)):
            if budget is not None:
                unit = float(prices.max(initial=0)) or 1.0
                least = float(prices[spent].sum() + prices[free][problem.placed[free]].sum() - budget) / unit
                kept = prices[self._group[stays]] / unit
                row = self._block(1, (np.zeros(len(stays), dtype=np.int64), stays, kept))
                yield row, np.array([least]), np.array([np.inf])

    def _block(self, height: int, *entries: tuple[Any, Any, Any]) -> Any:
        """Return `height` rows from entries of row, column and value."""
        row, column, value = (np.concatenate([np.atleast_1d(entry[i]) for entry in entries]) for i in range(3))
        return sp.coo_matrix((value, (row, column)), shape=(height, len(self._group) + len(self._bins) + 3))


def _solved(
    highs: Any, model: Any, guess: list[float], options: dict[str, Any], pause: Callable[[], None]
) -> tuple[Floats, bool, float]:
    """Return the columns' values, whether they are optimal, and the run time in seconds."""
    solver = _silent(highs)
    for name, value in options.items():
        solver.setOptionValue(name, value)
    pause()
    solver.passModel(model)
    pause()
    start = highs.HighsSolution()
    start.col_value = guess
    solver.setSolution(start)
    pause()
    # HiGHS releases Python's lock meanwhile.
    solver.run()
    pause()
    proven = bool(solver.getModelStatus() == highs.HighsModelStatus.kOptimal)
    return np.asarray(solver.getSolution().col_value, dtype=np.float64), proven, float(solver.getRunTime())


def _silent(highs: Any) -> Any:
    """Return a solver that writes nothing to standard output, where the command line writes its JSON.

    From version 1.16 on, the first solver of a process prints HiGHS's version when it registers its callbacks, which
    its constructor does before an option can be set.
    """

    class Silent(highs.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:  # noqa: N802
            self.silent()
            super().enableCallbacks()

    return Silent()


def _options(limits: Limits, seed: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "output_flag": False,
        "random_seed": int(seed) % (2**31 - 1),
        "mip_rel_gap": limits.gap,
        "mip_abs_gap": 1e-6,
        "mip_feasibility_tolerance": 1e-7,
    }
    if limits.seconds is not None:
        options["time_limit"] = limits.seconds
    if limits.nodes is not None:
        options["mip_max_nodes"] = limits.nodes
    return options
