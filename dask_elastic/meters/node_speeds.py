"""How fast a core of each node is, learnt from the rates at which executors are served there."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SLOWEST, FASTEST = 0.25, 4.0
"""Bounds of a speed: what lies beyond is the cost of other keys, not the node."""

_ROUNDS = 20


class ServedRate(NamedTuple):
    """The rate at which an operator's rows are served on a node.

    Parameters
    ----------
    operator : hashable
        The operator, of one job.
    node : str
        The address of the node.
    rate : float
        Tuples per busy second of one core, above 0.
    weight : float
        Busy seconds per second; little work is a weak hint.
    """

    operator: Hashable
    node: str
    rate: float
    weight: float


class NodeSpeeds:
    """Learns the speed of a core of each node, relative to the mean of the nodes.

    Parameters
    ----------
    memory : float
        The part of what is known that an observation keeps, from 0 to below 1.
    doubt : float
        Weight of the assumption that all nodes are equal, in busy cores.

    Notes
    -----
    ALBIC, section 3: capacities are inferred at runtime, "by first assuming all nodes are homogeneous, then measuring
    the actual effect of state migration". A service rate is taken as the product of a rate of the operator and a speed
    of the node; both are fitted by least squares of logarithms. An operator on a single node says nothing about nodes.

    Examples
    --------
    >>> speeds = NodeSpeeds(memory=0.0, doubt=0.0)
    >>> speeds.observe([ServedRate("op", "fast", 400.0, 1.0), ServedRate("op", "slow", 100.0, 1.0)])
    >>> {node: round(speed, 3) for node, speed in speeds.speeds().items()}
    {'fast': 2.0, 'slow': 0.5}
    """

    def __init__(self, memory: float = 0.8, doubt: float = 0.5):
        self.memory = memory
        self.doubt = doubt
        self._known: dict[tuple[Hashable, str], tuple[float, float]] = {}

    def observe(self, rates: Iterable[ServedRate]) -> None:
        """Take in the service rates of one period.

        Parameters
        ----------
        rates : iterable of ServedRate
            Those of executors that have all their cores on one node. Others are no hint at any node.
        """
        # Sums of weights and of weighted logarithms; older periods count less and less.
        self._known = {
            key: (self.memory * weight, self.memory * total)
            for key, (weight, total) in self._known.items()
            if self.memory * weight > 1e-6
        }
        for one in rates:
            if one.rate > 0 and one.weight > 0:
                weight, total = self._known.get((one.operator, one.node), (0.0, 0.0))
                self._known[one.operator, one.node] = weight + one.weight, total + one.weight * math.log(one.rate)

    def speeds(self) -> dict[str, float]:
        """Return the speed of a core of each node that was observed; 1 is the mean of them.

        Returns
        -------
        dict of str to float
            By address, from `SLOWEST` to `FASTEST`. The speed of any other node is taken as 1.
        """
        if not self._known:
            return {}
        keys = [*self._known]
        weights, totals = np.array([*self._known.values()]).T
        means = totals / weights
        nodes, node = _numbered([key[1] for key in keys])
        operators, operator = _numbered([key[0] for key in keys])
        node_logs = np.zeros(len(nodes))
        for _ in range(_ROUNDS):
            bases = _fitted(means - node_logs[node], weights, operator, len(operators), 0.0)
            node_logs = _fitted(means - bases[operator], weights, node, len(nodes), self.doubt)
            node_logs -= node_logs.mean()
        speeds = np.clip(np.exp(node_logs), SLOWEST, FASTEST)
        return dict(zip(nodes, speeds.tolist(), strict=True))


def _numbered(names: Sequence[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the different names, and the number of each one among them."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [*numbers], np.array([numbers[name] for name in names], dtype=np.int64)


def _fitted(
    left: NDArray[np.float64], weights: NDArray[np.float64], part: NDArray[np.int64], parts: int, doubt: float
) -> NDArray[np.float64]:
    """Return the weighted mean of each part, drawn to 0 by a weight of doubt."""
    fitted: NDArray[np.float64] = np.bincount(part, weights * left, parts) / (np.bincount(part, weights, parts) + doubt)
    return fitted
