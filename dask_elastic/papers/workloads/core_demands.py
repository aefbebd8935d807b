"""Problems of core assignment: cores that executors need while the popularity of keys is shuffled.

Notes
-----
Elasticutor, sections 4 and 5.4, Table 3: clusters of 8 to 32 nodes with 8 cores. Its recording of a stock exchange is
not public, and the number of executors is not given; here there are three per node, and a stream of keys with a Zipf
exponent of 1. Data intensity counts bytes in and out (fifth erratum).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dask_elastic.model.jackson import allocate
from dask_elastic.papers.workloads.key_shuffles import KeyShuffles
from dask_elastic.planning.checked_arrays import Floats, Ints
from dask_elastic.vocab.errors import PlanningError


@dataclass(frozen=True, eq=False)
class CoreDemand:
    """The arguments of `dask_elastic.planning.cores.assign_cores` in one period, except the current cores.

    Parameters
    ----------
    wanted : array of int
        Cores that each executor wants.
    capacity : array of int
        Cores of each node.
    state_bytes : array of float
        State of each executor.
    home : array of int
        Node of each executor.
    intensity : array of float
        Bytes in and out of each executor, per second and core.
    """

    wanted: Ints
    capacity: Ints
    state_bytes: Floats
    home: Ints
    intensity: Floats

    def first(self) -> Ints:
        """Return the initial cores, nodes × executors: one for each executor, on its home node.

        Raises
        ------
        PlanningError
            If a node is home of more executors than it has cores.
        """
        held = np.bincount(self.home, minlength=len(self.capacity))
        if (held > self.capacity).any():
            node = int(np.argmax(held - self.capacity))
            raise PlanningError(
                f"node {node} is home of {int(held[node])} executors, with {self.capacity[node]} cores."
            )
        cores = np.zeros((len(self.capacity), len(self.home)), dtype=np.int64)
        cores[self.home, np.arange(len(self.home))] = 1
        return cores


def core_demands(
    seed: int,
    nodes: int,
    periods: int,
    cores: int = 8,
    executors_per_node: int = 3,
    utilisation: float = 0.8,
    heavy: float = 0.1,
) -> Iterator[CoreDemand]:
    """Make the demands of successive periods, each after a shuffle of all keys.

    Parameters
    ----------
    seed : int
        Seeds the permutations, and which executors have large tuples.
    nodes, cores : int
        The number of nodes, and of cores of each.
    periods : int
        The number of demands.
    executors_per_node : int
        Executors per node, at most `cores`.
    utilisation : float
        The share of all cores that the load keeps busy, above 0 and below 1.
    heavy : float
        The share of executors whose tuples have 2 KB instead of 128 bytes.

    Yields
    ------
    CoreDemand
        With the cores that the model gives for a mean latency of 1.5 times the service time.

    Raises
    ------
    PlanningError
        If a number is out of range.

    Examples
    --------
    >>> first, second = core_demands(seed=1, nodes=8, periods=2)
    >>> first.first().shape, bool((first.wanted != second.wanted).any()), int(first.wanted.sum()) <= 64
    ((8, 24), True, True)
    """
    if not 0 < utilisation < 1 or not 0 <= heavy <= 1:
        raise PlanningError(
            f"utilisation is {utilisation!r}, heavy {heavy!r}: give shares, the first above 0, below 1."
        )
    if nodes < 1 or not 1 <= executors_per_node <= cores:
        raise PlanningError(f"{nodes} nodes of {cores} cores with {executors_per_node} executors: give 1 to {cores}.")
    executors = nodes * executors_per_node
    stream = KeyShuffles(keys=4_000, exponent=1.0, executors=executors)
    seconds = stream.cost_moments[0] / 1000
    rate = utilisation * nodes * cores / seconds
    executor = stream.shard_of_key // stream.shards
    size = np.where(np.random.default_rng([seed, 2]).random(executors) < heavy, 2048.0, 128.0)
    service = np.full(executors, 1 / seconds)
    capacity, home = np.full(nodes, cores), np.arange(executors) % nodes
    state = np.full(executors, stream.shards * stream.state_bytes)
    # A window of half a minute is the time between two shuffles.
    for shares in stream.key_shares(seed, periods, seconds=30.0):
        arrival = rate * np.bincount(executor, shares, executors)
        wanted = allocate(rate, arrival, service, 1.5 * seconds, nodes * cores).cores
        yield CoreDemand(wanted, capacity, state, home, 2 * size * arrival / wanted)
