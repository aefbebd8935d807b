"""Keys whose popularity is shuffled: the loads of Elasticutor's micro-benchmark.

Notes
-----
Elasticutor, section 5.1: 10,000 keys, Zipf with exponent 0.5, their frequencies permuted at random ω times per minute;
32 executors of 256 shards with 32 KB of state each; 1 ms per tuple. The cost of a tuple is normal, with the mean in ms
and half of it as variance, floored at zero (sixth erratum), so that the actual mean is slightly higher.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.stats import norm

from dask_elastic.papers.workloads.popularity import zipf_shares
from dask_elastic.planning.placement.problem import Floats, Ints, PlacementProblem
from dask_elastic.routing.hashing import hash_columns
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True)
class KeyShuffles:
    """A stream of keys, and the executors that process it.

    Parameters
    ----------
    shuffles_per_minute : float
        ω, permutations of the keys' frequencies per minute; 0 for none.
    keys : int
        The number of keys.
    exponent : float
        The skew of their Zipf distribution.
    rate : float
        Tuples per second.
    cost : float
        The mean of the normal distribution of a tuple's cost, in milliseconds.
    executors, shards : int
        The number of executors, and of shards of each.
    state_bytes : float
        State of each shard.

    Raises
    ------
    PlanningError
        If a number is out of range.

    Notes
    -----
    Elasticutor, section 5.1. The paper gives the rate as "sufficiently high"; the default keeps 200 of 256 cores busy.

    Examples
    --------
    >>> load = KeyShuffles().shard_loads(seed=1, windows=2)
    >>> load.shape, round(float(load[0].sum()))
    ((2, 8192), 205)
    """

    shuffles_per_minute: float = 2.0
    keys: int = 10_000
    exponent: float = 0.5
    rate: float = 200_000.0
    cost: float = 1.0
    executors: int = 32
    shards: int = 256
    state_bytes: float = 32 * 1024

    def __post_init__(self) -> None:
        for name, value in (("shuffles_per_minute", self.shuffles_per_minute), ("state_bytes", self.state_bytes)):
            if not (value >= 0 and math.isfinite(value)):
                raise PlanningError(f"{name} is {value!r}: give a finite number of 0 or more.")
        for name, value in (("rate", self.rate), ("cost", self.cost)):
            if not (value > 0 and math.isfinite(value)):
                raise PlanningError(f"{name} is {value!r}: give a finite number above 0.")
        KeySpace(self.executors, self.shards)
        zipf_shares(self.keys, self.exponent)

    @property
    def cost_moments(self) -> tuple[float, float]:
        """The mean, in milliseconds, and the variance of a tuple's cost, which is floored at zero."""
        deviation = math.sqrt(0.5 * self.cost)
        below, density = norm.cdf(self.cost / deviation), norm.pdf(self.cost / deviation)
        mean = self.cost * below + deviation * density
        square = (self.cost**2 + deviation**2) * below + self.cost * deviation * density
        return float(mean), float(square - mean**2)

    @property
    def shard_of_key(self) -> Ints:
        """The shard of each key, numbered executor by executor as in the engine."""
        rows = pa.record_batch({"key": np.arange(self.keys)})
        return KeySpace(self.executors, self.shards).group_of(hash_columns(rows, ["key"])).astype(np.int64)

    def tuple_costs(self, seed: int, count: int) -> Floats:
        """Return the costs of `count` tuples, in milliseconds.

        Examples
        --------
        >>> costs = KeyShuffles().tuple_costs(seed=1, count=1000)
        >>> bool(costs.min() == 0), round(float(costs.mean()), 1)
        (True, 1.0)
        """
        random = np.random.default_rng(seed)
        result: Floats = np.maximum(random.normal(self.cost, math.sqrt(0.5 * self.cost), count), 0.0)
        return result

    def key_shares(self, seed: int, windows: int, seconds: float = 1.0) -> Floats:
        """Return the share of each key in the tuples of each window.

        Parameters
        ----------
        seed : int
            Seeds the permutations.
        windows : int
            The number of windows.
        seconds : float
            Seconds per window.

        Returns
        -------
        array of float, windows × keys
            A window with a shuffle has the mean of the shares before and after it, weighted by time.

        Raises
        ------
        PlanningError
            If `seconds` is not above 0.
        """
        if windows < 0 or not (seconds > 0 and math.isfinite(seconds)):
            raise PlanningError(f"windows is {windows!r}, seconds {seconds!r}: give 0 or more, and above 0.")
        random = np.random.default_rng(seed)
        shares = zipf_shares(self.keys, self.exponent)
        apart = 60 / self.shuffles_per_minute if self.shuffles_per_minute else math.inf
        result = np.zeros((windows, self.keys))
        end, permuted = apart, random.permutation(shares)
        for window in range(windows):
            time, until = window * seconds, (window + 1) * seconds
            # A shuffle at the end of a window belongs to the next one; sums of floats are not exact.
            while end < until - 1e-9:
                result[window] += (end - time) / seconds * permuted
                time, end, permuted = end, end + apart, random.permutation(shares)
            result[window] += (until - time) / seconds * permuted
        return result

    def shard_loads(self, seed: int, windows: int, seconds: float = 1.0) -> Floats:
        """Return the load of each shard in each window.

        Parameters
        ----------
        seed : int
            Seeds permutations, arrivals and costs.
        windows : int
            The number of windows.
        seconds : float
            Seconds per window.

        Returns
        -------
        array of float, windows × shards of all executors
            Busy seconds per second of one core.

        Notes
        -----
        Arrivals are Poisson. The total cost of many tuples is drawn from a normal distribution of the same mean and
        variance.
        """
        random = np.random.default_rng([seed, 1])
        shares = self.key_shares(seed, windows, seconds)
        place, count = self.shard_of_key, self.executors * self.shards
        expected = np.stack([np.bincount(place, row, count) for row in shares]) if windows else np.zeros((0, count))
        tuples = random.poisson(expected * self.rate * seconds)
        mean, spread = self.cost_moments
        busy = tuples * mean + np.sqrt(tuples * spread) * random.standard_normal(tuples.shape)
        result: Floats = np.maximum(busy, 0.0) / 1000 / seconds
        return result

    def problems(
        self, seed: int, windows: int, nodes: int = 32, seconds: float = 1.0, max_moves: int | None = None
    ) -> Iterator[PlacementProblem]:
        """Make a placement problem from each window, with all shards of the operator as groups.

        Parameters
        ----------
        seed : int
            Seeds the loads.
        windows : int
            The number of problems.
        nodes : int
            The number of nodes; executors are assigned to them round-robin.
        seconds : float
            Seconds per window.
        max_moves : int, optional
            The budget of each window.

        Yields
        ------
        PlacementProblem
            Groups are shards, bins nodes, loads busy seconds per second.

        Notes
        -----
        Elasticutor, section 5: executors are assigned to nodes in a round-robin manner.

        Examples
        --------
        >>> first, second = KeyShuffles(executors=4, shards=8).problems(seed=1, windows=2, nodes=2)
        >>> first.groups, first.bins, first.current[::8].tolist()
        (32, 2, [0, 1, 0, 1])
        """
        executor = np.repeat(np.arange(self.executors), self.shards)
        state = np.full(len(executor), self.state_bytes)
        for load in self.shard_loads(seed, windows, seconds):
            yield PlacementProblem(load, executor % nodes, nodes, state, max_moves=max_moves)
