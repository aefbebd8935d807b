"""What may be done with a component: the configurations of operators of Enorm, and what follows for its migration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dask_elastic.topology.aggregates.partial_results import Merged, Partial
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import Compute, Filter, MapOperator, Operator
from dask_elastic.topology.windowing import EventWindow
from dask_elastic.topology.windows.results import result_keys

Strategy: TypeAlias = Literal["instant", "disruptive", "smooth"]
Figure: TypeAlias = Literal[1, 2, 3, 4]


@dataclass(frozen=True)
class Configuration:
    """What Enorm says of a component, by its first operator: with fused computes, it is that of the first one.

    Parameters
    ----------
    operator : str
        The operator.
    stateful : bool
        Whether it keeps state that is nowhere else. An operator that consolidates is stateless: the partial results
        that it has could be sent again.
    flexible : bool
        Whether its rows may be divided in another way without moving state: its results are merged downstream.
    figure : {1, 2, 3, 4}
        The part of Enorm's Figure 5: partial results that are consolidated, by itself or by the next component; results
        that are computed row by row; complete results that are consolidated again; rows without state.
    windowed : bool
        Whether it has windows.
    change : str
        How it could be split or combined, or why not; empty without windows.

    Notes
    -----
    Enorm, section 4.3, Table 1, and section 5. The paper calls every compute flexible, but adds at Figure 5.2 that
    state has to move if nothing merges its results; such a compute is rigid here.

    Examples
    --------
    >>> print(Configuration("hourly", True, True, 1, True, "consolidated by 'all'"))
    flexible, stateful (Figure 5.1); may migrate by: instant, disruptive, smooth; consolidated by 'all'
    """

    operator: str
    stateful: bool
    flexible: bool
    figure: Figure
    windowed: bool = False
    change: str = ""

    @property
    def kind(self) -> str:
        """Both properties in words."""
        return f"{'flexible' if self.flexible else 'rigid'}, {'stateful' if self.stateful else 'stateless'}"

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategies of Enorm, section 5, by which it may be migrated, the fastest first."""
        found: list[Strategy] = ["instant"] if self.flexible or not self.stateful else []
        if self.stateful:
            found += ["disruptive", "smooth"] if self.windowed else ["disruptive"]
        return tuple(found)

    def __str__(self) -> str:
        text = f"{self.kind} (Figure 5.{self.figure}); may migrate by: {', '.join(self.strategies)}"
        return f"{text}; {self.change}" if self.change else text


def configuration(topology: OperatorGraph, name: str) -> Configuration:
    """Return the configuration of a component.

    Parameters
    ----------
    topology : OperatorGraph
        The topology, valid or not.
    name : str
        The component's first operator.

    Returns
    -------
    Configuration
        What Enorm says of it.

    Examples
    --------
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> topology = de.Topology("delays")
    >>> rows = pa.table({"plane": ["a"], "at": pa.array([0], pa.timestamp("s"))})
    >>> flights = topology.source("flights", de.sources.Arrow(rows, event_time="at"))
    >>> hourly = flights.key_by("plane").window("1h").compute({"n": de.aggregate.Count()}, name="hourly")
    >>> print(configuration(topology, "hourly"))
    rigid, stateful (Figure 5.1); may migrate by: disruptive, smooth; can be split: pass partials=True, and ...
    >>> print(configuration(topology, "flights"))
    flexible, stateless (Figure 5.4); may migrate by: instant
    """
    operator = topology.operator(name)
    if not isinstance(operator, Compute):
        return Configuration(name, False, True, 4)
    if operator.windowing is None:
        return Configuration(name, True, False, 2)
    if _consolidates(operator):
        before = [one for one in _neighbours(topology, operator, "inputs") if isinstance(one, Compute)]
        again = bool(before) and all(map(_consolidates, before))
        return Configuration(name, False, False, 3 if again else 1, True, _combinable_with(topology, operator))
    if not _returns_partials(operator):
        return Configuration(name, True, False, 1 if operator.aggregates else 2, True, _splittable(operator))
    readers = _neighbours(topology, operator, "consumers")
    merged = bool(readers) and all(isinstance(one, Compute) and _consolidates(one) for one in readers)
    names = " and ".join(repr(one.name) for one in readers)
    change = f"consolidated by {names}" if merged else "its partial results are not consolidated"
    return Configuration(name, True, merged, 1, True, change)


def _consolidates(operator: Operator) -> bool:
    logic = operator.aggregates if isinstance(operator, Compute) else None
    inner = [one.aggregate if isinstance(one, Partial) else one for one in (logic or {}).values()]
    return bool(inner) and all(isinstance(one, Merged) for one in inner)


def _returns_partials(operator: Compute) -> bool:
    return bool(operator.aggregates) and all(isinstance(one, Partial) for one in (operator.aggregates or {}).values())


def _splittable(operator: Compute) -> str:
    """Return how a compute whose windows it completes itself can be split, or why not."""
    assert operator.windowing is not None
    if operator.aggregates is None:
        return "cannot be split: results of a function without merge= are not merged"
    if not isinstance(operator.windowing.windows[0], EventWindow):
        return f"cannot be split: the bounds of {operator.windowing.windows[0]} differ from key to key"
    if operator.windowing.revised:
        return "cannot be split: results are corrected, and partial results are merged once"
    return "can be split: pass partials=True, and consolidate the results with de.consolidate"


def _combinable_with(topology: OperatorGraph, operator: Compute) -> str:
    """Return with which compute one that consolidates can be combined, or why with none."""
    before = _neighbours(topology, operator, "inputs")
    if len(before) != 1:
        names = " and ".join(repr(one.name) for one in before)
        return f"cannot be combined: it merges the results of {names}"
    first = before[0]
    keys = result_keys(operator.keys)
    if isinstance(first, Compute) and set(result_keys(first.keys)) != set(keys):
        return f"cannot be combined: it merges the results of {first.name!r} over other keys"
    if [one.name for one in _neighbours(topology, first, "consumers")] != [operator.name]:
        return f"cannot be combined: others read the partial results of {first.name!r}"
    return f"can be combined with {first.name!r}: omit partials=True there, and this operator"


def _neighbours(topology: OperatorGraph, operator: Operator, towards: Literal["inputs", "consumers"]) -> list[Operator]:
    """Return the operators before or behind one, without maps and filters in between."""
    step = topology.inputs if towards == "inputs" else topology.consumers
    waiting = list(step(operator.name))
    for one in waiting:
        if isinstance(one, MapOperator | Filter):
            waiting += [further for further in step(one.name) if further not in waiting]
    return [one for one in waiting if not isinstance(one, MapOperator | Filter)]
