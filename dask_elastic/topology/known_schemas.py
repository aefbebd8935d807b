"""Schemas of streams as far as they are known before a job runs, and the errors that they reveal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate
from dask_elastic.topology.aggregates.bundle import result_fields
from dask_elastic.topology.aggregates.operand import Operand
from dask_elastic.topology.aggregates.partial_results import innermost
from dask_elastic.topology.expiry_time import check_time_type
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.logic_level import RowLogic
from dask_elastic.topology.operators import Compute, Filter, MapOperator, Operator, SourceOperator, select_columns
from dask_elastic.topology.schema import describe_difference, plain_schema
from dask_elastic.topology.windows.one_key import OneKey
from dask_elastic.topology.windows.own_logic import result_schema
from dask_elastic.topology.windows.results import bound_columns, result_keys
from dask_elastic.vocab.arrow_arrays import no_rows
from dask_elastic.vocab.column_types import ColumnTypes
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

Known: TypeAlias = dict[str, pa.Schema]
"""Schemas of the rows of a stream, by the operator that determines them; operators of unknown schemas are left out."""


def known_inputs(topology: OperatorGraph) -> dict[str, pa.Schema | None]:
    """Check all operators against the schemas that are known, and return those of the stateful operators' inputs.

    Parameters
    ----------
    topology : Topology
        A valid topology whose sources have been checked.

    Returns
    -------
    dict of str to Schema or None
        By stateful operator; None if the schema is not known because the rows come from a function.

    Raises
    ------
    SchemaMismatch
        When an operator reads a column that its input lacks, an expression cannot be evaluated, or the streams of a
        union differ in the type of a column on which state depends.
    TopologyError
        When an aggregate does not support the type of its column.

    Notes
    -----
    No user code is called. What functions return is unknown, and so is all that follows from it.
    """
    outputs: dict[str, Known] = {}
    inputs: dict[str, pa.Schema | None] = {}
    for operator in topology.in_order():
        known = _input(topology, operator, outputs)
        if isinstance(operator, Compute):
            inputs[operator.name] = next(iter(known.values()), None)
        outputs[operator.name] = _output(operator, known)
    return inputs


def known_output(topology: OperatorGraph, producers: Sequence[str]) -> pa.Schema | None:
    """Return the schema of a stream.

    Parameters
    ----------
    topology : OperatorGraph
        The topology, which may be incomplete.
    producers : sequence of str
        The operators whose rows the stream has.

    Returns
    -------
    Schema or None
        The schema; None if it is not known of all of them.

    Raises
    ------
    SchemaMismatch
        When an operator before the stream cannot read its input, or the producers differ in their columns.
    """
    needed = list(producers)
    for name in needed:
        needed += [before.name for before in topology.inputs(name) if before.name not in needed]
    outputs: dict[str, Known] = {}
    for operator in topology.in_order():
        if operator.name in needed:
            outputs[operator.name] = _output(operator, _input(topology, operator, outputs))
    schemas = [schema for name in producers for schema in outputs[name].values()]
    if not schemas or not all(outputs[name] for name in producers):
        return None
    for name, schema in zip(producers, schemas, strict=False):
        if difference := describe_difference(schemas[0], schema):
            raise SchemaMismatch(f"the streams of {producers[0]!r} and {name!r} in a union differ: {difference}.")
    return schemas[0]


def _input(topology: OperatorGraph, operator: Operator, outputs: Mapping[str, Known]) -> Known:
    known: Known = {}
    for producer in topology.inputs(operator.name):
        known.update(outputs[producer.name])
    return known


def result_types(operator: Compute, schema: pa.Schema | None) -> dict[str, pa.DataType | None]:
    """Return the types of the results of aggregates.

    Parameters
    ----------
    operator : Compute
        An operator whose logic is aggregates.
    schema : Schema or None
        The schema of its input; None if it is not known.

    Returns
    -------
    dict of str to DataType or None
        By output column; None where the type is not known.

    Raises
    ------
    SchemaMismatch, TopologyError
        When an aggregate cannot be bound to the schema.

    Examples
    --------
    >>> from dask_elastic.topology.aggregate import Count, Mean
    >>> result_types(Compute("planes", ("plane",), {"flights": Count(), "delay": Mean("delay")}), None)
    {'flights': DataType(int64), 'delay': None}
    """
    assert operator.aggregates is not None
    found: dict[str, pa.DataType | None] = {}
    for output, aggregate in operator.aggregates.items():
        bound = _bound(operator.name, output, aggregate, schema)
        found |= {output: None} if bound is None else {one.name: one.type for one in result_fields(output, bound)}
    return found


def _output(operator: Operator, known: Known) -> Known:
    match operator:
        case SourceOperator():
            schema = operator.source.known_schema()
            return {} if schema is None else {operator.name: schema}
        case Filter():
            for origin, schema in known.items():
                _check_filter(operator, origin, schema)
            return known
        case MapOperator():
            for schema in known.values():
                select_columns(no_rows(schema), operator.columns, operator.name)
            return _mapped(operator, known) if operator.output is None else {operator.name: operator.output}
        case Compute():
            return _computed(operator, known)
    return {}


def _check_filter(operator: Filter, origin: str, schema: pa.Schema) -> None:
    rows = select_columns(no_rows(schema), operator.columns, operator.name)
    if not isinstance(operator.predicate, pc.Expression):
        return
    try:
        operator.apply(rows)
    except (pa.ArrowException, NotImplementedError, TypeError) as error:
        missing = re.search(r"FieldRef\.Name\((.*?)\)", str(error))
        if missing is None and any(map(pa.types.is_null, schema.types)):
            return  # A column that has only nulls so far, as that of an empty table, tells nothing.
        reason = (
            f"reads column {missing[1]!r}, which its input lacks"
            if missing and missing[1] not in rows.schema.names
            else f"cannot evaluate {operator.predicate}: {error}"
        )
        columns = ", ".join(f"{field.name}: {field.type}" for field in rows.schema)
        raise SchemaMismatch(
            f"filter {operator.name!r} {reason}; the columns of {origin!r} are {columns}. Correct the expression."
        ) from error


def _mapped(operator: MapOperator, known: Known) -> Known:
    """Return the schemas behind a map of the engine's own; those behind a user's function are not known."""
    if not isinstance(operator.function, OneKey):
        return {}
    columns = operator.columns
    read = {
        origin: schema if columns is None else pa.schema([schema.field(name) for name in columns])
        for origin, schema in known.items()
    }
    return {origin: operator.function.known_output(schema) for origin, schema in read.items()}


def _computed(operator: Compute, known: Known) -> Known:
    read = operator.columns
    first: ColumnTypes | None = None
    for origin, schema in known.items():
        times = () if operator.windowing is None else operator.windowing.time
        times = times if operator.time is None else (operator.time,)
        select_columns(no_rows(schema), read or (*operator.keys, *times), operator.name)
        if operator.time is not None:
            check_time_type(schema.field(operator.time).type, operator.time, f"compute {operator.name!r}")
        types = ColumnTypes(origin, {name: str(schema.field(name).type) for name in read or schema.names}, read is None)
        first = first or types
        first.require_same(types, operator.name)
    if operator.join is not None:
        return {operator.name: operator.join.output}
    if first is None:
        return {}
    schema = known[first.producer]
    keys = {key: schema.field(key).type for key in result_keys(operator.keys)}
    if operator.windowing is not None:
        types_of = {column: schema.field(column).type for column in operator.windowing.time}
        keys |= bound_columns(operator.windowing, types_of, operator.name)
    if operator.aggregates is not None:
        results = result_types(operator, schema)
        if all(kind is not None for kind in results.values()):
            return {operator.name: plain_schema(pa.schema({**keys, **results}))}
    elif operator.windowing is not None:
        of_function = result_schema(operator.function, keys)
        return {} if of_function is None else {operator.name: plain_schema(of_function)}
    elif isinstance(operator.logic, RowLogic) and operator.logic.output is not None:
        return {operator.name: plain_schema(operator.logic.output)}
    return {}


def _bound(operator: str, output: str, aggregate: Aggregate, schema: pa.Schema | None) -> BoundAggregate | None:
    """Bind an aggregate to a schema; return None where the types are not known without calling a user's function."""
    if any(isinstance(part, Operand) and callable(part.of) for part in vars(innermost(aggregate)).values()):
        return None
    if schema is None and aggregate.columns:
        return None
    schema = schema or pa.schema([])
    if any(pa.types.is_null(schema.field(name).type) for name in aggregate.columns if name in schema.names):
        return None
    try:
        return aggregate.bind(schema)
    except (SchemaMismatch, TopologyError) as error:
        raise type(error)(f"compute {operator!r}, output {output!r}: {error}") from error
