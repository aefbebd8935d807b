"""How fast a core of each node is, learnt from the rates at which executors are served there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

SLOWEST, FASTEST = 0.25, 4.0
"""Bounds of a speed: what lies beyond is the cost of other keys, not the node."""

_ROUNDS = 20

_FORGOTTEN = 1e-6
"""The weight below which an operator's rate on a node is forgotten."""


class ServedRates(NamedTuple):
    """The rates at which rows of operators are served on nodes, in columns.

    Parameters
    ----------
    operators : sequence of hashable
        The operators, each of one job.
    nodes : sequence of str
        The addresses of the nodes.
    operator, node : array of int
        The operator and the node of each rate, as indexes into these.
    rate : array of float
        Tuples per busy second of one core.
    weight : array of float
        Busy seconds per second; little work is a weak hint.
    """

    operators: Sequence[Hashable]
    nodes: Sequence[str]
    operator: Ints
    node: Ints
    rate: Floats
    weight: Floats

    @staticmethod
    def of(rates: Iterable[tuple[Hashable, str, float, float]]) -> ServedRates:
        """Return rates that are given as operator, node, rate and weight."""
        operators, nodes, rate, weight = zip(*rates, strict=True) if (rates := tuple(rates)) else ((), (), (), ())
        names, addresses = list(dict.fromkeys(operators)), list(dict.fromkeys(nodes))
        return ServedRates(
            names, addresses, _places(operators, names), _places(nodes, addresses), np.array(rate), np.array(weight)
        )


class NodeSpeeds:
    """Learns the speed of a core of each node, relative to the mean of the nodes.

    Parameters
    ----------
    memory : float
        The part of what is known that an observation keeps, from 0 to below 1.
    doubt : float
        Weight of the assumption that all nodes are equal, in busy cores.
    pause : callable
        Called about every millisecond of work.

    Notes
    -----
    ALBIC, section 3: capacities are inferred at runtime, "by first assuming all nodes are homogeneous, then measuring
    the actual effect of state migration". A service rate is taken as the product of a rate of the operator and a speed
    of the node; both are fitted by least squares of logarithms. An operator on a single node says nothing about nodes.

    Examples
    --------
    >>> speeds = NodeSpeeds(memory=0.0, doubt=0.0)
    >>> speeds.observe(ServedRates.of([("op", "fast", 400.0, 1.0), ("op", "slow", 100.0, 1.0)]))
    >>> {node: round(speed, 3) for node, speed in speeds.speeds().items()}
    {'fast': 2.0, 'slow': 0.5}
    """

    def __init__(self, memory: float = 0.8, doubt: float = 0.5, pause: Callable[[], None] = lambda: None):
        self.memory = memory
        self._pause = pause
        self.doubt = doubt
        # Of each operator on each node: the mean logarithm of its rates, weighted. Older periods count less and less.
        self._known = ServedRates.of(())

    def observe(self, rates: ServedRates) -> None:
        """Take in the service rates of one period.

        Parameters
        ----------
        rates : ServedRates
            Those of executors that have all their cores on one node; others are no hint at any node. Those without rate
            or weight are left out.
        """
        real = (rates.rate > 0) & (rates.weight > 0)
        new = rates._replace(
            operator=rates.operator[real],
            node=rates.node[real],
            rate=np.log(rates.rate[real]),
            weight=rates.weight[real],
        )
        self._pause()
        old = self._known._replace(weight=self.memory * self._known.weight)
        operators, operator = _merged(old.operators, old.operator, new.operators, new.operator)
        nodes, node = _merged(old.nodes, old.node, new.nodes, new.node)
        self._pause()
        pairs, pair = np.unique(operator * len(nodes) + node, return_inverse=True)
        weights = np.append(old.weight, new.weight)
        weight: Floats = np.bincount(pair, weights, len(pairs)).astype(np.float64)
        total = np.bincount(pair, weights * np.append(old.rate, new.rate), len(pairs))
        self._pause()
        kept = weight > _FORGOTTEN
        pairs, weight, total = pairs[kept], weight[kept], total[kept]
        operators, operator = _used(operators, pairs // max(len(nodes), 1))
        nodes, node = _used(nodes, pairs % max(len(nodes), 1))
        self._known = ServedRates(operators, nodes, operator, node, total / weight, weight)

    def speeds(self) -> dict[str, float]:
        """Return the speed of a core of each node that was observed; 1 is the mean of them.

        Returns
        -------
        dict of str to float
            By address, from `SLOWEST` to `FASTEST`. The speed of any other node is taken as 1.
        """
        operators, nodes, operator, node, means, weights = self._known
        if not len(nodes):
            return {}
        node_logs = np.zeros(len(nodes))
        for _ in range(_ROUNDS):
            self._pause()
            bases = _fitted(means - node_logs[node], weights, operator, len(operators), 0.0)
            node_logs = _fitted(means - bases[operator], weights, node, len(nodes), self.doubt)
            node_logs -= node_logs.mean()
        speeds = np.clip(np.exp(node_logs), SLOWEST, FASTEST)
        return dict(zip(nodes, speeds.tolist(), strict=True))


def _places(values: Sequence[Any], names: Sequence[Any]) -> Ints:
    """Return where each value is among different names."""
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[value] for value in values], dtype=np.int64)


def _merged(old: Sequence[Any], one: Ints, new: Sequence[Any], other: Ints) -> tuple[list[Any], Ints]:
    """Return the names of two sequences, and places in either as places in these names."""
    names = list(dict.fromkeys((*old, *new)))
    return names, np.append(_places(old, names)[one], _places(new, names)[other])


def _used(names: Sequence[Any], place: Ints) -> tuple[list[Any], Ints]:
    """Return the names that are in use, and the place of each use among them."""
    used, place = np.unique(place, return_inverse=True)
    return [names[number] for number in used.tolist()], place


def _fitted(left: Floats, weights: Floats, part: Ints, parts: int, doubt: float) -> Floats:
    """Return the weighted mean of each part, drawn to 0 by a weight of doubt."""
    fitted: Floats = np.bincount(part, weights * left, parts) / (np.bincount(part, weights, parts) + doubt)
    return fitted
