"""The flow of rows through a job: the load of each operator, and the rows per second between operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

Edge = tuple[str, str]
"""Names of a producer and of a consumer."""

BACKPRESSURED = 0.5
"""Share of time from which on an operator is called backpressured; Flink's level "high" begins there, too."""

HARDLY = 0.1
"""Share of time up to which an operator is called not backpressured; Flink's level "ok" ends there, too."""


class InstanceLoad(NamedTuple):
    """The load of one instance of a source, of an executor, or of an instance of a sink.

    Parameters
    ----------
    component : str
        The component.
    cores : int
        Cores of an executor; 1 for others.
    busy : float
        Busy seconds per second, at most `cores`.
    backpressured : float
        The share of time in which its rows wait for credit, from 0 to 1.
    lag : float or None
        Seconds by which the rows of a source are late.
    """

    component: str
    cores: int
    busy: float
    backpressured: float
    lag: float | None = None


@dataclass(frozen=True)
class OperatorFlow:
    """An operator of a job.

    Parameters
    ----------
    name, kind : str
        Its name, and "source", "map", "filter", "compute" or "sink".
    component : str
        The operator in whose thread it runs; itself for all but stateless operators.
    busy, backpressured : float or None
        Shares of time of its component, from 0 to 1, which add up to 1 at most; None before they are measured.
    lag : float or None
        Seconds by which the rows of a source are late, at the instance where they are latest.
    dead_letters : int
        Rows on which its code raised.
    """

    name: str
    kind: str
    component: str
    busy: float | None = None
    backpressured: float | None = None
    lag: float | None = None
    dead_letters: int = 0

    @property
    def occupied(self) -> float:
        """The share of time in which it is not idle."""
        return (self.busy or 0.0) + (self.backpressured or 0.0)

    @property
    def fused(self) -> bool:
        """Whether it runs in the thread of the operator before it."""
        return self.component != self.name


@dataclass(frozen=True)
class JobFlow:
    """The operators of a job, and the rows per second between them.

    Parameters
    ----------
    operators : tuple of OperatorFlow
        The operators, each after those that it reads.
    rates : mapping of (str, str) to float
        Rows per second by producer and consumer.
    """

    operators: tuple[OperatorFlow, ...] = ()
    rates: Mapping[Edge, float] = field(default_factory=dict)

    @property
    def lag(self) -> float | None:
        """The largest lag of its sources; None if no source is measured."""
        return max((one.lag for one in self.operators if one.lag is not None), default=None)

    @property
    def dead_letters(self) -> dict[str, int]:
        """Rows on which the code of operators raised, by operator."""
        return {one.name: one.dead_letters for one in self.operators if one.dead_letters}

    def at_rest(self) -> JobFlow:
        """Return the flow of the same job after it has ended: without loads and rates."""
        operators = tuple(replace(one, busy=None, backpressured=None, lag=None) for one in self.operators)
        return JobFlow(operators, dict.fromkeys(self.rates, math.nan))

    def bottlenecks(self) -> dict[str, list[str]]:
        """Return the operators that hold others back, each with those that wait for it.

        Of the consumers of an operator that waits, the one with the least idle time is to blame. If that one waits for
        credit itself, the bottleneck is further downstream.

        Returns
        -------
        dict of str to list of str
            By an operator that is hardly backpressured itself, the operators in front of it that are.

        Examples
        --------
        >>> structure = [("rows", ("rows",), ("source",)), ("slow", ("slow",), ("compute",))]
        >>> loads = [InstanceLoad("rows", 1, 0.01, 0.98), InstanceLoad("slow", 2, 1.9, 0.0)]
        >>> job_flow(structure, {("rows", "slow"): 50.0}, loads, {}).bottlenecks()
        {'slow': ['rows']}
        """
        by_name = {one.name: one for one in self.operators}
        found: dict[str, list[str]] = {}
        for name, consumers in self._downstream().items():
            if (by_name[name].backpressured or 0.0) < BACKPRESSURED:
                continue
            slowest = max((by_name[one] for one in consumers), key=lambda one: one.occupied)
            if slowest.backpressured is not None and slowest.backpressured <= HARDLY:
                found.setdefault(slowest.name, []).append(name)
        return found

    def _downstream(self) -> dict[str, list[str]]:
        """Return the components that each component sends rows to."""
        component = {one.name: one.component for one in self.operators}
        found: dict[str, list[str]] = {}
        for producer, consumer in self.rates:
            upstream, downstream = component.get(producer), component.get(consumer)
            if upstream is not None and downstream is not None and upstream != downstream:
                found.setdefault(upstream, []).append(downstream)
        return found


def job_flow(
    structure: Iterable[tuple[str, Sequence[str], Sequence[str]]],
    rates: Mapping[Edge, float],
    loads: Iterable[InstanceLoad],
    dead_letters: Mapping[str, int],
) -> JobFlow:
    """Make the flow of a job from what its nodes report.

    Parameters
    ----------
    structure : iterable of (str, sequence of str, sequence of str)
        Each component with its operators and their kinds, after those that it reads.
    rates : mapping of (str, str) to float
        Rows per second by producer and consumer; all edges are in it.
    loads : iterable of InstanceLoad
        The instances of the components.
    dead_letters : mapping of str to int
        Rows on which code raised, by operator.
    """
    by_component: dict[str, list[InstanceLoad]] = {}
    for load in loads:
        by_component.setdefault(load.component, []).append(load)
    operators: dict[str, OperatorFlow] = {}
    for component, names, kinds in structure:
        busy, backpressured, lag = _shares(by_component.get(component, ()))
        for name, kind in zip(names, kinds, strict=True):
            known = operators.get(name)
            # A stateless operator that reads several producers runs in the threads of each.
            if known is not None and (known.backpressured or 0.0) >= (backpressured or 0.0):
                continue
            its_lag = lag if name == component else None
            operators[name] = OperatorFlow(
                name, kind, component, busy, backpressured, its_lag, dead_letters.get(name, 0)
            )
    return JobFlow(tuple(operators.values()), dict(rates))


def _shares(loads: Sequence[InstanceLoad]) -> tuple[float | None, float | None, float | None]:
    """Return the busy share, the backpressured share and the lag of a component.

    A core that is processing is busy, even if outputs of another one wait for credit meanwhile.
    """
    if not loads:
        return None, None, None
    cores = sum(max(1, load.cores) for load in loads)
    busy = min(1.0, sum(load.busy for load in loads) / cores)
    waiting = sum(load.backpressured * max(1, load.cores) for load in loads) / cores
    lag = max((load.lag for load in loads if load.lag is not None), default=None)
    return busy, min(waiting, 1.0 - busy), lag
