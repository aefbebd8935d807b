"""The decisions of PMC: for each partitioning and possible next number of nodes, the targets that may be best.

Goal
    The costs of all migrations that matter, in blocks that can be computed and kept apart, here or on other machines.
Heuristic
    None. Dominated partitionings are no targets; few targets remain for each source.
Not done
    The values of partitionings: `dask_elastic.planning.intervals.value_iteration` computes them.

Notes
-----
State migration (Ding et al.), section 5.2, Figure 9. Why some targets P′ can be dropped: migrating from P″ to P′ first
bounds its cost, C[P″] ≤ c(P″, P′) + C[P′]. So if P″ lies on the way, c(P, P″) + c(P″, P′) = c(P, P′), then P″ is at
least as good a target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.planning.intervals.partitionings import Partitionings, dominated, rounding
from dask_elastic.planning.turns import no_pause


@dataclass(frozen=True, eq=False)
class Policy:
    """The best target of each decision: `source` and `share` are its partitioning and its probability."""

    source: Ints
    share: Floats
    target: Ints


@dataclass(frozen=True, eq=False)
class Decisions:
    """Decisions with their targets.

    `cost` and `target` hold all targets, grouped by decision, with the first of each at `first`; `source` and `share`
    are the partitioning and the probability of each decision.
    """

    cost: Floats
    target: Ints
    first: Ints
    source: Ints
    share: Floats

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        """Return the decisions of several blocks as one."""
        sizes = [len(part.cost) for part in parts]
        starts = np.cumsum([0, *sizes[:-1]])
        return cls(
            np.concatenate([part.cost for part in parts]),
            np.concatenate([part.target for part in parts]),
            np.concatenate([part.first + start for part, start in zip(parts, starts, strict=True)]),
            np.concatenate([part.source for part in parts]),
            np.concatenate([part.share for part in parts]),
        )

    def renewed(self, values: Floats, discount: float, begin: int, states: int) -> Floats:
        """Return the costs of `states` partitionings from `begin` on, one migration before those of `values`."""
        best = np.minimum.reduceat(self.cost + discount * values[self.target], self.first)
        return np.bincount(self.source - begin, self.share * best, minlength=states).astype(np.float64)

    def chosen(self, values: NDArray[Any], discount: float, begin: int, states: int) -> tuple[NDArray[Any], Policy]:
        """Return the same in the precision of `values`, and the decisions that lead there."""
        options = self.cost + values.dtype.type(discount) * values[self.target]
        best = np.minimum.reduceat(options, self.first)
        renewed = np.zeros(states, dtype=values.dtype)
        np.add.at(renewed, self.source - begin, self.share * best)
        hits = np.flatnonzero(options == np.repeat(best, np.diff(self.first, append=len(options))))
        target = self.target[hits[np.searchsorted(hits, self.first)]]
        return renewed, Policy(self.source, self.share, target)


@dataclass(frozen=True, eq=False)
class Space:
    """All partitionings for the numbers of nodes of a matrix, numbered one after the other, in blocks.

    Parameters
    ----------
    state : array of float
        The state of each task.
    rows : mapping of mappings
        For each number of nodes the probabilities of the next number.
    found : mapping of int to list of Partitionings
        For each number of nodes its partitionings.
    """

    state: Floats
    rows: Mapping[int, Mapping[int, float]]
    found: Mapping[int, list[Partitionings]]

    @cached_property
    def offset(self) -> dict[int, int]:
        """The number of the first partitioning, by number of nodes."""
        ends = np.cumsum([sum(map(len, parts)) for parts in self.found.values()])
        return dict(zip(self.found, [0, *ends[:-1].tolist()], strict=True))

    @property
    def states(self) -> int:
        """The number of partitionings."""
        return sum(len(part) for parts in self.found.values() for part in parts)

    @cached_property
    def blocks(self) -> Ints:
        """Blocks of partitionings, as rows: nodes, position in `found`, first and last one, number of the first one."""
        size = min(part.block for parts in self.found.values() for part in parts)
        rows, done = [], 0
        for nodes, parts in self.found.items():
            for position, part in enumerate(parts):
                begins = np.arange(0, len(part), size)
                ends = np.minimum(begins + size, len(part))
                same = np.ones(len(begins), dtype=np.int64)
                rows.append(np.column_stack([same * nodes, same * position, begins, ends, done + begins]))
                done += len(part)
        return np.concatenate(rows)

    def decisions(self, block: int, pause: Callable[[], None] = no_pause) -> Decisions:
        """Return the decisions of a block, by its position in `blocks`; pauses about every millisecond of work."""
        nodes, position, begin, end, number = self.blocks[block].tolist()
        sources = self.found[nodes][position].bounds[begin:end]
        pieces = []
        for after, share in self.rows[nodes].items():
            costs, targets, counts = _targets(self.state, sources, self.found[after], pause)
            index = np.arange(number, number + len(sources))
            first = np.cumsum(counts) - counts
            shares = np.full(len(sources), share)
            pieces.append(Decisions(costs, targets + self.offset[after], first, index, shares))
        return Decisions.joined(pieces)


def _targets(
    state: Floats, sources: Ints, found: list[Partitionings], pause: Callable[[], None]
) -> tuple[Floats, Ints, Ints]:
    """Return costs and numbers of the targets that are not dominated, by source, and their count per source."""
    tables = [part.costs(state, sources, pause) for part in found]
    pause()
    worse = [dominated(part, state, table, rounding(state)) for part, table in zip(found, tables, strict=True)]
    costs, keep = np.concatenate(tables).T, ~np.concatenate(worse).T
    target: Ints = np.nonzero(keep)[1].astype(np.int64)
    return costs[keep], target, keep.sum(axis=1)
