"""Running a topology in one thread without a cluster, for unit tests of topologies."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from dask_elastic.executor.error_policy import FailedRows, OnError
from dask_elastic.executor.keyed_state import read_state
from dask_elastic.simulator import Placement, World, WorldOptions
from dask_elastic.topology.checks.chain_check import check_chains
from dask_elastic.topology.checks.key_check import check_keys
from dask_elastic.topology.component import Component, build_components
from dask_elastic.topology.fused.groups import Fuse
from dask_elastic.topology.known_schemas import known_inputs
from dask_elastic.topology.operators import SinkOperator, SourceOperator
from dask_elastic.topology.schema import stack_rows
from dask_elastic.topology.source import Source, SourceContext
from dask_elastic.topology.tables import TABLES_TAKEN, as_table
from dask_elastic.topology.topology import Topology
from dask_elastic.vocab.errors import ElasticError, SourceError, SubmitError, TopologyError, UnknownOperator
from dask_elastic.vocab.row_counts import RowCounts

SLOTS = (2, 2)
"""Cores of the simulated nodes."""

Given: TypeAlias = Any
"""Rows of one source: what `as_table` converts, or a list of such."""


@dataclass(frozen=True)
class Result:
    """The outputs and final state of a topology run.

    Parameters
    ----------
    outputs : dict of str to Table
        The rows that each sink received, by the sink's name, and also by the name of the operator before it if the sink
        has only that input. The rows of one key are in order. A sink that received no batch is left out.
    state : dict of str to Table
        The final state of each stateful operator: key columns, then results. An operator that received no batch is left
        out.
    dead_letters : dict of str to Table
        With ``on_error="skip"``, the rows that each operator failed on, with their errors in the column ``__error``.
    late : dict of str to int
        For each source with event time, the number of rows that were later than its slack allows. They were processed
        like all others.
    windows : dict of str to RowCounts
        For each operator with windows, and each join, what became of its rows.
    passed : dict of (str, str) to int
        How many rows each operator has passed to each operator that reads it: `Topology.fusions` takes them as rates.

    Examples
    --------
    >>> from dask_elastic import Topology, sinks, sources
    >>> topology = Topology("squares")
    >>> numbers = topology.source("numbers", sources.Arrow(pa.table({"n": [1, 2]})))
    >>> numbers.sink(sinks.Collect(), name="out")
    >>> result = run(topology)
    >>> result.outputs["out"].to_pydict(), result.state, result.dead_letters
    ({'n': [1, 2]}, {}, {})
    """

    outputs: dict[str, pa.Table] = field(default_factory=dict)
    state: dict[str, pa.Table] = field(default_factory=dict)
    dead_letters: dict[str, pa.Table] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    windows: dict[str, RowCounts] = field(default_factory=dict)
    passed: dict[tuple[str, str], int] = field(default_factory=dict)


def run(
    topology: Topology,
    inputs: Mapping[str, Given] | None = None,
    *,
    executors: int | None = None,
    seed: int = 0,
    on_error: OnError = "fail",
    fuse: Fuse = False,
) -> Result:
    """Run a topology to its end in this thread, without a cluster and without writing to its sinks.

    It runs the engine's own code on a virtual clock and simulated nodes: keys are split among executors and tasks,
    batches are split and joined, and the seed decides the order of concurrent events. Sources are read as fast as
    possible, whatever their rate.

    Parameters
    ----------
    topology : Topology
        The topology to run.
    inputs : mapping of str to rows, optional
        Rows to read in place of a source, by the source's name: a table, a record batch, a pandas frame, or a list of
        these, which the source yields one by one. A source that is not named here is read itself. If the rows lack the
        source's column of event time, they have no event time.
    executors : int, optional
        Number of executors of each stateful operator; by default as the operators define.
    seed : int
        Decides how concurrent events interleave. Runs with the same seed are identical.
    on_error : {"fail", "skip"}
        Whether an exception in a user function ends the run, or the rows that caused it become dead letters.
    fuse : False, "auto" or sequence of (str, str)
        Which computes run in one task, as for `dask_elastic.submit`.

    Returns
    -------
    Result
        Outputs, final state, and dead letters.

    Raises
    ------
    TopologyError
        If the topology cannot run, `executors` is below 1, or the value of an input is not rows.
    TypeError
        If `topology` is none.
    SubmitError
        If `on_error` is neither "fail" nor "skip".
    UnknownOperator
        If `inputs` names something that is not a source of the topology.
    SourceError
        If a source cannot be read, or one that is fed by a program is not in `inputs`.
    SchemaMismatch
        If rows do not have the columns that an operator needs.
    UserCodeError
        If a user function raised and `on_error` is "fail".

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
    if not isinstance(topology, Topology):
        raise TypeError(f"run takes a Topology, not {type(topology).__name__}")
    if on_error not in ("fail", "skip"):
        raise SubmitError(f'on_error is {on_error!r}; give "fail" or "skip".')
    if executors is not None and executors < 1:
        raise TopologyError(f"executors is {executors!r}; give 1 or more, or None for the operators' own numbers.")
    given = dict(inputs or {})
    if not given:
        # As at submit. Of other rows, the columns may be others than those of the source.
        check_keys(topology, known_inputs(topology))
    components = [_with_rows(component, given) for component in build_components(topology, fuse)]
    check_chains(components)
    if given:
        raise _unknown(topology, [*given])
    placement = Placement.derived(components, SLOTS, executors)
    world = World(components, placement, np.random.default_rng(seed), WorldOptions(on_error=on_error))
    world.run()
    dead_letters = _dead_letters(world.dead_letters)
    passed = world.edge_rows.totals()
    return Result(_outputs(topology, world), _state(world), dead_letters, _late(world), _windows(world), passed)


class _GivenRows(Source):
    """A source that yields the given batches unchanged."""

    def __init__(self, batches: Sequence[pa.RecordBatch]):
        self._batches = batches

    def read(self, context: SourceContext) -> Iterator[tuple[pa.RecordBatch, object]]:
        for number, rows in enumerate(self._batches):
            if number % context.instances == context.instance:
                yield rows, number + 1


def _with_rows(component: Component, given: dict[str, Given]) -> Component:
    """Replace a source by the rows given for it, which are removed from `given`."""
    operator = component.operator
    if not isinstance(operator, SourceOperator):
        return component
    if operator.name not in given:
        if operator.source.pushed:
            name = operator.name
            raise SourceError(f"source {name!r} is fed by a program; give its rows as inputs={{{name!r}: rows}}.")
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
            f"the list of rows for source {source!r} is empty; give an empty table instead, which has columns."
        )
    return [batch for part in parts for batch in _table(source, part).to_batches()]


def _table(source: str, rows: object) -> pa.Table:
    try:
        table = as_table(rows)
    except ValueError as error:
        raise TopologyError(f"the rows for source {source!r} are no table: {error}.") from error
    if table is None:
        raise TopologyError(
            f"the rows for source {source!r} have type {type(rows).__name__}; give {TABLES_TAKEN}, or a list of these."
        )
    return table.replace_schema_metadata(None).unify_dictionaries()


def _unknown(topology: Topology, names: Sequence[str]) -> ElasticError:
    sources = ", ".join(operator.name for operator in topology.operators if isinstance(operator, SourceOperator))
    wrong = ", ".join(map(repr, names))
    return UnknownOperator(
        f"inputs names {wrong}, which is not a source of topology {topology.name!r}; its sources are: {sources}."
    )


def _outputs(topology: Topology, world: World) -> dict[str, pa.Table]:
    received: dict[str, list[tuple[int, pa.RecordBatch]]] = {}
    for identity, sink in world.sinks.items():
        received.setdefault(identity.component, []).extend(sink.received)
    outputs: dict[str, pa.Table] = {}
    for operator in topology.operators:
        batches = received.get(operator.name)
        if isinstance(operator, SinkOperator) and batches:
            tables = [pa.Table.from_batches([rows]) for _, rows in sorted(batches, key=_step)]
            outputs[operator.name] = stack_rows(tables, f"the rows of sink {operator.name!r}").unify_dictionaries()
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
        for operator in home.component.computes:
            primary = home.executor.store
            store = primary if operator.name == identity.component else primary.behind(operator.name)
            table = read_state(operator, store, now=world.now)
            if table is not None:
                tables.setdefault(operator.name, []).append(table)
    return {name: pa.concat_tables(parts).combine_chunks() for name, parts in tables.items()}


def _late(world: World) -> dict[str, int]:
    late: dict[str, int] = {}
    for identity, clock in world.clocks.items():
        late[identity.component] = late.get(identity.component, 0) + clock.late
    return late


def _windows(world: World) -> dict[str, RowCounts]:
    counts: dict[str, RowCounts] = {}
    for identity, home in world.homes.items():
        store = home.executor.store
        several = {one.operator: one.windows for one in store.compute_measures(identity.component, defaultdict(int))}
        for operator in home.component.computes:
            if operator.windowing is not None or operator.join is not None:
                counted = several[operator.name] if several else store.counted()
                counts[operator.name] = counts.get(operator.name, RowCounts()).plus(counted or ())
    return counts


def _dead_letters(letters: Sequence[FailedRows]) -> dict[str, pa.Table]:
    kept: dict[str, list[pa.Table]] = {}
    for failed in letters:
        rows = failed.rows.append_column("__error", pa.array(failed.errors))
        kept.setdefault(failed.operator, []).append(pa.Table.from_batches([rows]))
    tables = {operator: pa.concat_tables(rows, promote_options="default") for operator, rows in kept.items()}
    return {operator: table.combine_chunks() for operator, table in tables.items()}
