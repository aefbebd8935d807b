"""Running a topology without a cluster: for unit tests of what users write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_elastic.executor.error_policy import DeadLetter, OnError
from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import Placement, World, WorldOptions
from dask_elastic.topology.component import Component, build_components
from dask_elastic.topology.operators import Compute, SinkOperator, SourceOperator
from dask_elastic.topology.source import Source, SourceContext
from dask_elastic.topology.topology import Topology
from dask_elastic.vocab.errors import ElasticError, SourceError, SubmitError, TopologyError, UnknownOperator

SLOTS = (2, 2)
"""Cores of the nodes that a test pretends to have."""

Rows: TypeAlias = pa.Table | pa.RecordBatch | pd.DataFrame
Given: TypeAlias = Rows | Sequence[Rows]


@dataclass(frozen=True)
class Result:
    """What a topology made of its input.

    Parameters
    ----------
    outputs : dict of str to Table
        What each sink received, by the sink's name, and by the name of the operator before it where the sink reads that
        one alone. The rows of one key are in order. A sink that received nothing is left out.
    state : dict of str to Table
        The state of each stateful operator in the end: key columns, then results. An operator that received nothing is
        left out.
    dead_letters : dict of str to Table
        With ``on_error="skip"``, the rows that each operator could not digest, their errors in the column ``__error``.
    late : dict of str to int
        How many rows of each source with event time were later than its slack allows. They were processed like all
        others.
    """

    outputs: dict[str, pa.Table] = field(default_factory=dict)
    state: dict[str, pa.Table] = field(default_factory=dict)
    dead_letters: dict[str, pa.Table] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)


def run(
    topology: Topology,
    inputs: Mapping[str, Given] | None = None,
    *,
    executors: int | None = None,
    seed: int = 0,
    on_error: OnError = "fail",
) -> Result:
    """Run a topology to its end in this thread, without a cluster and without writing to its sinks.

    The engine's own code runs, on a clock and on nodes that are only pretended: keys are split among executors and
    tasks, batches are cut and joined, and what may happen in any order happens in an order that the seed decides.
    Sources are read as fast as possible, whatever their rate.

    Parameters
    ----------
    topology : Topology
        What to run.
    inputs : mapping of str to rows, optional
        Rows to read in place of a source, by the source's name: a table, a record batch, a pandas frame, or a list of
        these, each of which the source then yields by itself. A source that is not named reads what it always reads.
        Rows without the source's column of event time have none.
    executors : int, optional
        Into how many executors the keys of each stateful operator are cut; by default as the operators say.
    seed : int
        Runs of one seed are alike; other seeds interleave what is concurrent in other ways.
    on_error : {"fail", "skip"}
        Whether an exception in a function of the topology ends the run, or sets the rows that caused it aside.

    Returns
    -------
    Result
        Outputs, final state, and rows set aside.

    Raises
    ------
    TopologyError
        If the topology cannot run, or the rows given are none.
    UnknownOperator
        If `inputs` names something that is no source of the topology.
    UserCodeError
        If a function of the topology raised.

    Examples
    --------
    >>> from dask_elastic import Topology, sinks, sources
    >>> from dask_elastic import aggregate as agg
    >>> topology = Topology("delays")
    >>> flights = topology.source("flights", sources.Parquet("/no/such/flights.parquet"))
    >>> per_plane = flights.key_by("plane").compute({"worst": agg.Max("delay")}, name="per_plane")
    >>> per_plane.sink(sinks.Collect(), name="results")
    >>> flights = pa.table({"plane": ["a", "b", "a"], "delay": [3, 7, 5]})
    >>> result = run(topology, {"flights": flights})
    >>> result.state["per_plane"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'worst': [5, 7]}
    >>> sorted(result.outputs["results"].to_pylist(), key=lambda row: row["plane"])
    [{'plane': 'a', 'worst': 5}, {'plane': 'b', 'worst': 7}]
    """
    if on_error not in ("fail", "skip"):
        raise SubmitError(f'on_error is {on_error!r}; give "fail" or "skip".')
    if executors is not None and executors < 1:
        raise TopologyError(f"executors is {executors!r}; give 1 or more, or None for what the operators say.")
    given = dict(inputs or {})
    components = [_with_rows(component, given) for component in build_components(topology)]
    if given:
        raise _unknown(topology, [*given])
    placement = Placement.derived(components, SLOTS, executors)
    world = World(components, placement, np.random.default_rng(seed), WorldOptions(on_error=on_error))
    world.run()
    return Result(_outputs(topology, world), _state(world), _dead_letters(world.dead_letters), _late(world))


class _GivenRows(Source):
    """A source that yields batches as they were given."""

    def __init__(self, batches: Sequence[pa.RecordBatch]):
        self._batches = batches

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        for number, rows in enumerate(self._batches):
            if number % context.instances == context.instance:
                yield rows, number + 1


def _with_rows(component: Component, given: dict[str, Given]) -> Component:
    """Put the rows given for a source in its place, and take them out of `given`."""
    operator = component.operator
    if not isinstance(operator, SourceOperator):
        return component
    if operator.name not in given:
        if operator.source.pushed:
            name = operator.name
            raise SourceError(f"nobody sends rows to source {name!r} here: give them as inputs={{{name!r}: rows}}.")
        return component
    batches = _batches(operator.name, given.pop(operator.name))
    source = _GivenRows(batches)
    source.parallel = operator.source.parallel
    if all(operator.source.event_time in rows.schema.names for rows in batches):
        source.event_time, source.slack = operator.source.event_time, operator.source.slack
    return dataclasses.replace(component, operator=dataclasses.replace(operator, source=source))


def _batches(source: str, rows: Any) -> list[pa.RecordBatch]:
    parts = list(rows) if isinstance(rows, list | tuple) else [rows]
    if not parts:
        raise TopologyError(
            f"the list of rows for source {source!r} is empty; give an empty table, so that it has columns."
        )
    return [batch for part in parts for batch in _table(source, part).to_batches()]


def _table(source: str, rows: object) -> pa.Table:
    if isinstance(rows, pd.DataFrame):
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if not isinstance(rows, pa.Table):
        raise TopologyError(
            f"the rows for source {source!r} are of type {type(rows).__name__}; give a pyarrow Table or RecordBatch, a "
            "pandas DataFrame, or a list of these."
        )
    return rows.replace_schema_metadata(None).unify_dictionaries()


def _unknown(topology: Topology, names: Sequence[str]) -> ElasticError:
    sources = ", ".join(operator.name for operator in topology.operators if isinstance(operator, SourceOperator))
    wrong = ", ".join(map(repr, names))
    return UnknownOperator(
        f"inputs names {wrong}, which is no source of topology {topology.name!r}; its sources are: {sources}."
    )


def _outputs(topology: Topology, world: World) -> dict[str, pa.Table]:
    received: dict[str, list[tuple[int, pa.RecordBatch]]] = {}
    for identity, sink in world.sinks.items():
        received.setdefault(identity.component, []).extend(sink.received)
    outputs: dict[str, pa.Table] = {}
    for operator in topology.operators:
        batches = received.get(operator.name)
        if isinstance(operator, SinkOperator) and batches:
            table = pa.concat_tables([pa.Table.from_batches([rows]) for _, rows in sorted(batches, key=_step)])
            outputs[operator.name] = table.unify_dictionaries()
    for operator in topology.operators:
        producers = topology.inputs(operator.name)
        if operator.name in outputs and isinstance(operator, SinkOperator) and len(producers) == 1:
            outputs.setdefault(producers[0].name, outputs[operator.name])
    return outputs


def _step(entry: tuple[int, pa.RecordBatch]) -> int:
    return entry[0]


def _state(world: World) -> dict[str, pa.Table]:
    tables: dict[str, list[pa.Table]] = {}
    for identity, home in world.homes.items():
        operator = home.component.operator
        assert isinstance(operator, Compute)
        table = read_state(operator, home.executor.store, now=world.now)
        if table is not None:
            tables.setdefault(identity.component, []).append(table)
    return {name: pa.concat_tables(parts).combine_chunks() for name, parts in tables.items()}


def _late(world: World) -> dict[str, int]:
    late: dict[str, int] = {}
    for identity, clock in world.clocks.items():
        late[identity.component] = late.get(identity.component, 0) + clock.late
    return late


def _dead_letters(letters: Sequence[DeadLetter]) -> dict[str, pa.Table]:
    kept: dict[str, list[pa.Table]] = {}
    for letter in letters:
        row = letter.rows.append_column("__error", pa.array([letter.error] * letter.rows.num_rows))
        kept.setdefault(letter.operator, []).append(pa.Table.from_batches([row]))
    return {operator: pa.concat_tables(rows).combine_chunks() for operator, rows in kept.items()}
