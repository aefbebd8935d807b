"""Components: operators that run in one task and pass rows on by direct calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from dask_elastic.topology.fused.groups import Fuse, FusedGroup, Rates, fused_groups
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import (
    Compute,
    Filter,
    MapOperator,
    Operator,
    SinkOperator,
    SourceOperator,
    Stateless,
    select_columns,
)
from dask_elastic.vocab.state_record import Clock

Columns: TypeAlias = tuple[str, ...] | None


@dataclass(frozen=True)
class Exit:
    """Where rows leave a component.

    Parameters
    ----------
    target : str
        The component that receives the rows.
    keys : tuple of str
        The columns whose hash selects the executor of each row; empty for a sink.
    columns : tuple of str or None
        The columns that the target reads, its keys included; None for all.
    routed_by : tuple of str or None
        The key columns by whose hash alone the executor and the shard are selected; None for all.

    Examples
    --------
    >>> Exit("per_plane", ("plane",), ("plane", "delay")).target
    'per_plane'
    """

    target: str
    keys: tuple[str, ...] = ()
    columns: Columns = None
    routed_by: Columns = None

    def select(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with only the columns that the target reads.

        Parameters
        ----------
        rows : RecordBatch
            The component's output.

        Returns
        -------
        RecordBatch
            The same rows, without a copy.

        Raises
        ------
        SchemaMismatch
            When a column that the target reads, or one of its keys, is missing or occurs twice.

        Examples
        --------
        >>> rows = pa.RecordBatch.from_pydict({"plane": ["a"], "delay": [3], "note": ["-"]})
        >>> Exit("per_plane", ("plane",), ("plane", "delay")).select(rows).schema.names
        ['plane', 'delay']
        """
        if self.columns is None and self.keys:
            select_columns(rows, self.keys, self.target)
        return select_columns(rows, self.columns, self.target)


@dataclass(frozen=True)
class Branch:
    """An operator that runs in its producer's thread, and its consumers.

    Parameters
    ----------
    operator : MapOperator, Filter or Compute
        The operator; a compute is fused with the component's first operator.
    then : tuple of Branch or Exit
        Its consumers; each gets all of its output.
    """

    operator: Stateless | Compute
    then: tuple[Branch | Exit, ...]


Output: TypeAlias = Branch | Exit


@dataclass(frozen=True)
class Component:
    """A source, a compute or a sink, with the stateless operators and fused computes that follow it in the same task.

    Parameters
    ----------
    name : str
        The name of the first operator, which is the component's name.
    operator : SourceOperator, Compute or SinkOperator
        The first operator.
    outputs : tuple of Branch or Exit
        The consumers of its output; may be empty.
    inputs : tuple of str
        The components that it reads, each once.
    operators : tuple of str
        The names of all its operators, in the order in which rows reach them.

    Notes
    -----
    Enorm, section 4.4: operators of a component hand tuples over by direct calls.
    """

    name: str
    operator: SourceOperator | Compute | SinkOperator
    outputs: tuple[Output, ...] = ()
    inputs: tuple[str, ...] = ()
    operators: tuple[str, ...] = field(default=())

    @property
    def kind(self) -> str:
        """One of "source", "compute" and "sink"."""
        return self.operator.kind

    @property
    def fused(self) -> tuple[Compute, ...]:
        """The computes that follow the first one in its task, in the order in which rows reach them."""
        return fused_computes(self.outputs)

    @property
    def computes(self) -> tuple[Compute, ...]:
        """The computes that run in the component's tasks, the first operator first."""
        return (self.operator, *self.fused) if isinstance(self.operator, Compute) else ()

    @property
    def aggregates_only(self) -> bool:
        """Whether its tasks run aggregates and nothing else, neither functions nor joins nor stateless operators."""
        return 0 < len(self.computes) == len(self.operators) and all(
            one.aggregates is not None for one in self.computes
        )

    @property
    def clocks(self) -> frozenset[Clock]:
        """The clocks of the timers and windows of its computes."""
        return frozenset(clock for compute in self.computes for clock in compute.clocks)

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Producer and consumer of each stream that begins in the component."""
        return edges(self.name, self.outputs)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each of `operators`: "source", "map", "filter", "compute" or "sink"."""
        kinds = {
            output.operator.name: output.operator.kind for output in _walk(self.outputs) if isinstance(output, Branch)
        }
        return tuple(kinds.get(name, self.kind) for name in self.operators)

    @property
    def exits(self) -> tuple[Exit, ...]:
        """All exits, in the order in which rows reach them."""
        return tuple(_exits(self.outputs))

    def readers(self, column: str) -> tuple[str, ...]:
        """Return the operators that read a column of what the first operator emits, or its consumers in other tasks.

        Parameters
        ----------
        column : str
            The column.

        Returns
        -------
        tuple of str
            Their names; filters pass columns on, maps make new ones.
        """
        return tuple(dict.fromkeys(_readers(self.outputs, column)))

    def producers(self, target: str) -> tuple[str, ...]:
        """Return the operators whose output leaves for another component.

        Parameters
        ----------
        target : str
            The component that receives the rows.

        Returns
        -------
        tuple of str
            Their names: the last operator of each branch that leads there.
        """
        consumers = [(self.name, self.outputs), *_branches(self.outputs)]
        return tuple(
            name
            for name, outputs in consumers
            if any(isinstance(output, Exit) and output.target == target for output in outputs)
        )


def _readers(outputs: tuple[Output, ...], column: str) -> Iterator[str]:
    for output in outputs:
        columns = output.columns if isinstance(output, Exit) else output.operator.columns
        if column in (columns or ()):
            yield _consumer(output)
        if isinstance(output, Branch) and isinstance(output.operator, Filter):
            yield from _readers(output.then, column)


def fused_computes(outputs: tuple[Output, ...]) -> tuple[Compute, ...]:
    """Return the computes among the operators that follow a component's first one.

    Parameters
    ----------
    outputs : tuple of Branch or Exit
        The consumers of the first operator.

    Returns
    -------
    tuple of Compute
        In the order in which rows reach them.
    """
    branches = (output.operator for output in _walk(outputs) if isinstance(output, Branch))
    return tuple(operator for operator in branches if isinstance(operator, Compute))


def edges(name: str, outputs: tuple[Output, ...]) -> tuple[tuple[str, str], ...]:
    """Return producer and consumer of each stream that begins in a component, each pair once.

    Parameters
    ----------
    name : str
        The component.
    outputs : tuple of Branch or Exit
        The consumers of its first operator.

    Returns
    -------
    tuple of (str, str)
        In the order in which rows reach them.

    Examples
    --------
    >>> edges("flights", (Exit("per_plane", ("plane",)), Exit("archive")))
    (('flights', 'per_plane'), ('flights', 'archive'))
    """
    producers = [(name, outputs), *_branches(outputs)]
    return tuple(dict.fromkeys((producer, _consumer(one)) for producer, consumers in producers for one in consumers))


def _consumer(output: Output) -> str:
    return output.target if isinstance(output, Exit) else output.operator.name


def build_components(topology: OperatorGraph, fuse: Fuse = False, rates: Rates | None = None) -> tuple[Component, ...]:
    """Divide a topology into components, and prune its sources to the columns that are read.

    Parameters
    ----------
    topology : Topology
        A topology; how its operators are connected is checked first.
    fuse : False, "auto" or sequence of (str, str)
        Which computes run in one task; see `fused_groups`.
    rates : mapping of (str, str) to float, optional
        Rows per second between operators, for "auto".

    Returns
    -------
    tuple of Component
        Each component after all of its inputs.

    Raises
    ------
    TopologyError
        When the topology cannot run.

    Notes
    -----
    A stateless operator that reads several producers (a union) runs in the component of each. One that has several
    consumers runs once for all of them.

    Examples
    --------
    >>> from dask_elastic.topology import Source, Topology
    >>> class Numbers(Source):
    ...     def read(self, context):
    ...         yield from ()
    >>> topology = Topology("numbers")
    >>> numbers = topology.source("numbers", Numbers())
    >>> odd = numbers.filter(lambda rows: ..., name="odd")
    >>> odd.key_by("n").compute(lambda rows, state: None, name="per_n")
    Stream('per_n' of topology 'numbers')
    >>> [(component.name, component.operators, component.inputs) for component in build_components(topology)]
    [('numbers', ('numbers', 'odd'), ()), ('per_n', ('per_n',), ('numbers',))]
    """
    topology.check_graph()
    return _ComponentBuilder(topology, fused_groups(topology, fuse, rates)).components()


class _ComponentBuilder:
    """The columns and consumers of each operator, from which `build_components` makes components."""

    def __init__(self, topology: OperatorGraph, groups: tuple[FusedGroup, ...] = ()):
        self._order = topology.in_order()
        self._routed = {name: group.columns for group in groups for name in group.operators}
        self._followers = {name for group in groups for name in group.operators[1:]}
        self._needs: dict[str, Columns] = {}
        self._outputs: dict[str, tuple[Output, ...]] = {}
        # Consumers first: the outputs of an operator contain those of its consumers. This avoids recursion.
        for operator in reversed(self._order):
            consumers = topology.consumers(operator.name)
            self._needs[operator.name] = _union(self._read_by(consumer) for consumer in consumers)
            self._outputs[operator.name] = tuple(self._step(consumer) for consumer in consumers)

    def components(self) -> tuple[Component, ...]:
        components: list[Component] = []
        inputs: dict[str, list[str]] = {operator.name: [] for operator in self._order}
        for operator in self._order:
            if isinstance(operator, MapOperator | Filter) or operator.name in self._followers:
                continue
            outputs = self._outputs[operator.name]
            for target in dict.fromkeys(output.target for output in _exits(outputs)):
                inputs[target].append(operator.name)
            names = tuple(dict.fromkeys((operator.name, *_fused(outputs))))
            first = self._pruned(operator)
            components.append(Component(operator.name, first, outputs, tuple(inputs[operator.name]), names))
        return tuple(components)

    def _pruned(self, operator: SourceOperator | Compute | SinkOperator) -> SourceOperator | Compute | SinkOperator:
        if isinstance(operator, Compute):
            return self._co_partitioned(operator)
        if not isinstance(operator, SourceOperator):
            return operator
        columns = self._needs[operator.name]
        event_time = operator.source.event_time
        if columns is not None and event_time is not None and event_time not in columns:
            columns = (*columns, event_time)
        return replace(operator, source=operator.source.columns_read(columns))

    def _co_partitioned(self, operator: Compute) -> Compute:
        columns = self._routed.get(operator.name, operator.keys)
        return operator if columns == operator.keys else replace(operator, routed_by=columns)

    def _read_by(self, consumer: Operator) -> Columns:
        """Return the columns of its input that a consumer needs, those that it passes on included."""
        if isinstance(consumer, Filter):
            return _union((consumer.columns, self._needs[consumer.name]))
        return consumer.columns if isinstance(consumer, MapOperator | Compute) else None

    def _step(self, consumer: Operator) -> Output:
        if isinstance(consumer, Filter):
            kept = replace(consumer, keep=self._needs[consumer.name])
            return Branch(kept, self._outputs[consumer.name])
        if isinstance(consumer, MapOperator):
            return Branch(consumer, self._outputs[consumer.name])
        if isinstance(consumer, Compute):
            routed = self._co_partitioned(consumer)
            if consumer.name in self._followers:
                return Branch(routed, self._outputs[consumer.name])
            return Exit(consumer.name, consumer.keys, consumer.columns, routed.routed_by)
        return Exit(consumer.name)


def _union(needs: Iterator[Columns] | tuple[Columns, ...]) -> Columns:
    seen: dict[str, None] = {}
    for columns in needs:
        if columns is None:
            return None
        seen.update(dict.fromkeys(columns))
    return tuple(seen)


def _walk(outputs: tuple[Output, ...]) -> Iterator[Output]:
    """Yield every branch and exit once, each branch before its consumers."""
    seen: set[int] = set()
    waiting = list(reversed(outputs))
    while waiting:
        output = waiting.pop()
        if id(output) in seen:
            continue
        seen.add(id(output))
        yield output
        if isinstance(output, Branch):
            waiting.extend(reversed(output.then))


def longest_chain(outputs: tuple[Output, ...]) -> int:
    """Return how many operators follow each other by direct calls behind a component's first one, at most.

    Examples
    --------
    >>> longest_chain((Exit("counts"),))
    0
    """
    lengths: dict[int, int] = {}
    waiting = list(outputs)
    while waiting:
        then = waiting[-1].then if isinstance(waiting[-1], Branch) else ()
        if left := [output for output in then if id(output) not in lengths]:
            waiting.extend(left)
            continue
        output = waiting.pop()
        lengths[id(output)] = max((lengths[id(one)] for one in then), default=0) + isinstance(output, Branch)
    return max((lengths[id(output)] for output in outputs), default=0)


def _branches(outputs: tuple[Output, ...]) -> Iterator[tuple[str, tuple[Output, ...]]]:
    return ((output.operator.name, output.then) for output in _walk(outputs) if isinstance(output, Branch))


def _exits(outputs: tuple[Output, ...]) -> Iterator[Exit]:
    return (output for output in _walk(outputs) if isinstance(output, Exit))


def _fused(outputs: tuple[Output, ...]) -> Iterator[str]:
    return (name for name, _ in _branches(outputs))
