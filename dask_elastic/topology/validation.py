"""Checks of operators and their options when a user adds them to a topology."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dask_elastic.topology.aggregates.aggregation import Aggregate
from dask_elastic.topology.logic_level import KeyLogic, LeveledLogic, RowLogic
from dask_elastic.topology.sink import Sink
from dask_elastic.topology.source import Source
from dask_elastic.topology.state_kind import Declared, StateKind
from dask_elastic.topology.tables import is_table
from dask_elastic.vocab.errors import TopologyError

MOST_SHARDS = 65_536
MARKS = "?#@"
"""A state value's name must not end in one of these: the engine appends them to name the parts of a value."""


def check_name(name: object, what: str) -> str:
    """Check the name of a topology, an operator or a job.

    Parameters
    ----------
    name : object
        The name given.
    what : str
        What the name is for, for the error text.

    Returns
    -------
    str
        The name.

    Raises
    ------
    TopologyError
        When it is not a str, is empty, or is not printable.

    Examples
    --------
    >>> check_name("per plane", "compute")
    'per plane'
    >>> check_name("", "compute")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: compute: the name is empty; give it one that says what it does.
    """
    if not isinstance(name, str):
        raise TopologyError(f"{what}: the name is {name!r}, {_type(name)}; give a str.")
    if not name.strip():
        raise TopologyError(f"{what}: the name is empty; give it one that says what it does.")
    if not name.isprintable():
        raise TopologyError(f"{what}: the name {name!r} has characters that cannot be printed; remove them.")
    return name


def check_source(source: object, name: str) -> Source:
    """Check a source and its options.

    Parameters
    ----------
    source : object
        The source given by the user.
    name : str
        The operator's name.

    Returns
    -------
    Source
        The source.

    Raises
    ------
    TopologyError
        When it is not a `Source`, or its `parallel`, `rate`, `event_time` or `slack` is invalid.
    """
    where = f"source {name!r}"
    if is_table(source):
        raise TopologyError(f"{where}: a {type(source).__name__} is not a Source; give sources.Arrow of it.")
    if not isinstance(source, Source):
        raise TopologyError(f"{where}: {_instance_wanted(source, 'Source', 'sources.Parquet(...)')}")
    check_count(source.parallel, where, "parallel")
    rate = source.rate
    if rate is not None and not (_is_number(rate) and math.isfinite(rate) and rate > 0):
        raise TopologyError(
            f"{where}: rate is {rate!r}; give rows per second above 0, or None for as fast as possible."
        )
    event_time = source.event_time
    if event_time is not None and not (isinstance(event_time, str) and event_time):
        raise TopologyError(f"{where}: event_time is {event_time!r}; give the name of a column, or None.")
    slack = source.slack
    if not (_is_number(slack) and math.isfinite(slack) and slack >= 0):
        raise TopologyError(f"{where}: slack is {slack!r}; give seconds, 0 or more.")
    return source


def check_sink(sink: object, where: str) -> Sink:
    """Check a sink.

    Parameters
    ----------
    sink : object
        The sink given by the user.
    where : str
        The operator, for the error text.

    Returns
    -------
    Sink
        The sink.

    Raises
    ------
    TopologyError
        When it is not a `Sink`.
    """
    if not isinstance(sink, Sink):
        raise TopologyError(f"{where}: {_instance_wanted(sink, 'Sink', 'sinks.Parquet(...)')}")
    return sink


def check_function(function: object, where: str, *arguments: str) -> Callable[..., Any]:
    """Check that the engine can call a function.

    Parameters
    ----------
    function : object
        The function given by the user.
    where : str
        The operator, for the error text.
    *arguments : str
        The names of the positional arguments with which the engine calls it.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    TopologyError
        When it is not callable, is asynchronous, takes other arguments, or is decorated for `compute` only.

    Examples
    --------
    >>> check_function(lambda: None, "map 'tidy'", "batch")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: map 'tidy': the function <lambda>() cannot be called as ...
    """
    call = f"function({', '.join(arguments)})"
    if not callable(function):
        raise TopologyError(f"{where}: {function!r} is {_type(function)}; give a function, called as {call}.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TopologyError(
            f"{where}: {_called(function)} is asynchronous, but task threads are not; give a synchronous function."
        )
    if isinstance(function, LeveledLogic) and arguments == ("batch",):
        raise TopologyError(
            f"{where}: @de.{function.decorator} is for compute; here {_called(function)} gets a batch: remove it."
        )
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # Some functions written in C have no signature.
        return function
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TopologyError(
            f"{where}: the function {_called(function)}{signature} cannot be called as {call}: {error}."
        ) from None
    return function


def check_predicate(predicate: object, where: str) -> Callable[..., Any] | pc.Expression:
    """Check the predicate of a filter.

    Parameters
    ----------
    predicate : object
        A function of a batch, or an expression.
    where : str
        The operator, for the error text.

    Returns
    -------
    callable or pyarrow.compute.Expression
        The predicate.

    Raises
    ------
    TopologyError
        When it is neither, or cannot be called with a batch.
    """
    return predicate if isinstance(predicate, pc.Expression) else check_function(predicate, where, "batch")


def check_columns(columns: object, where: str) -> tuple[str, ...] | None:
    """Check the names of the columns that an operator reads.

    Parameters
    ----------
    columns : object
        A list or tuple of names, or None for all columns.
    where : str
        The operator, for the error text.

    Returns
    -------
    tuple of str or None
        The names; None for all.

    Raises
    ------
    TopologyError
        When it is not a list or tuple of distinct names.

    Examples
    --------
    >>> check_columns(["plane", "delay"], "map 'tidy'")
    ('plane', 'delay')
    """
    if columns is None:
        return None
    if not isinstance(columns, list | tuple):
        hint = f"; write columns=[{columns!r}]" if isinstance(columns, str) else "; give a list of column names"
        raise TopologyError(f"{where}: columns={columns!r} is {_type(columns)}{hint}.")
    if not columns:
        raise TopologyError(f"{where}: columns is empty; name the columns to read, or omit it to read all columns.")
    return _distinct_names(tuple(columns), f"{where}: columns")


def check_keys(columns: tuple[object, ...], where: str) -> tuple[str, ...]:
    """Check the key columns of a `key_by`.

    Parameters
    ----------
    columns : tuple
        The arguments of `key_by`.
    where : str
        The stream, for the error text.

    Returns
    -------
    tuple of str
        The names.

    Raises
    ------
    TopologyError
        When there are none, or they are not distinct names.
    """
    if not columns:
        raise TopologyError(f"{where}: key_by got no columns; name at least one, as in key_by('plane').")
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        names = ", ".join(repr(column) for column in columns[0])
        raise TopologyError(f"{where}: key_by takes names, not a list of names; write key_by({names}).")
    return _distinct_names(columns, f"{where}: key_by")


def check_logic(logic: object, keys: tuple[str, ...], where: str) -> Mapping[str, Aggregate] | Callable[..., Any]:
    """Check the logic of a compute operator.

    Parameters
    ----------
    logic : object
        A dict of aggregates by output column, or a function of a batch and its state, or one decorated with `per_row`
        or `per_key`.
    keys : tuple of str
        The key columns, which are also in the output.
    where : str
        The operator, for the error text.

    Returns
    -------
    mapping of str to Aggregate, or callable
        The logic; a dict is copied, so that later changes to it do not affect the topology.

    Raises
    ------
    TopologyError
        When it is neither, or an output column has no name or a duplicate one.
    """
    if not isinstance(logic, Mapping):
        if isinstance(logic, Aggregate):
            raise TopologyError(f"{where}: an aggregate needs an output column; write compute({{'name': {logic!r}}}).")
        if isinstance(logic, LeveledLogic):
            check_function(logic.function, f"{where}: {logic.decorator}", *logic.arguments)
            return logic
        return _check_batch_function(logic, where)
    if not logic:
        raise TopologyError(f"{where}: the dict of aggregates is empty; give at least one.")
    for output, aggregate in logic.items():
        if not isinstance(output, str) or not output:
            raise TopologyError(f"{where}: the output column {output!r} is not a name; give a str that is not empty.")
        if output in keys:
            raise TopologyError(
                f"{where}: the output has column {output!r} twice, as key and as {aggregate!r}; rename the aggregate."
            )
        if not isinstance(aggregate, Aggregate):
            raise TopologyError(
                f"{where}, output {output!r}: {_instance_wanted(aggregate, 'Aggregate', 'agg.Count()')}"
            )
    return dict(logic)


def _check_batch_function(logic: object, where: str) -> Callable[..., Any]:
    try:
        return check_function(logic, where, "batch", "state")
    except TopologyError as error:
        for level in (KeyLogic, RowLogic):
            if callable(logic) and _takes(logic, level.arguments):
                raise TopologyError(
                    f"{error} Write @de.{level.decorator} above it to have it called as "
                    f"function({', '.join(level.arguments)})."
                ) from None
        raise


def _takes(function: Callable[..., Any], arguments: tuple[str, ...]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True


def check_state(
    state: object, logic: Mapping[str, Aggregate] | Callable[..., Any], keys: tuple[str, ...], where: str
) -> Mapping[str, Declared] | None:
    """Check the declared state of a compute operator.

    Parameters
    ----------
    state : object
        A dict of Arrow types, `object`, `Value`, `List` or `Map` by value name; or None.
    logic : mapping or callable
        The logic that the state is for.
    keys : tuple of str
        The key columns, whose names state values must not use.
    where : str
        The operator, for the error text.

    Returns
    -------
    mapping of str to type, or None
        A copy of the declaration.

    Raises
    ------
    TopologyError
        When the logic is aggregates, which declare their own state, or a name or type is invalid.
    """
    if state is None:
        return None
    if isinstance(logic, Mapping):
        raise TopologyError(f"{where}: aggregates keep their own state; omit state=, or give a function as logic.")
    if not isinstance(state, Mapping):
        raise TopologyError(f"{where}: state is {_type(state)}; give a dict such as {{'last': pa.float64()}}.")
    for name, kind in state.items():
        if not isinstance(name, str) or not name:
            raise TopologyError(f"{where}: the state value {name!r} is not a name; give a str that is not empty.")
        if name in keys:
            raise TopologyError(f"{where}: {name!r} is a key column and a state value; rename the state value.")
        if name[-1] in MARKS:
            raise TopologyError(
                f"{where}: the state value {name!r} ends in {name[-1]!r}, which is reserved; rename it."
            )
        if isinstance(kind, type) and issubclass(kind, StateKind):
            raise TopologyError(f"{where}: state value {name!r}: {_instance_wanted(kind, 'StateKind', '')}")
        if kind is not object and not isinstance(kind, pa.DataType | StateKind):
            raise TopologyError(
                f"{where}: state value {name!r} is declared as {kind!r}; give a pyarrow type such as pa.float64(), "
                "object for any Python object, or a Value, List or Map."
            )
    return dict(state)


def check_count(value: object, where: str, option: str, most: int | None = None) -> int:
    """Check an option that is a positive integer.

    Parameters
    ----------
    value : object
        The option's value.
    where : str
        The operator, for the error text.
    option : str
        The option's name.
    most : int, optional
        The largest valid value.

    Returns
    -------
    int
        The value.

    Raises
    ------
    TopologyError
        When it is not an integer from 1 to `most`.

    Examples
    --------
    >>> check_count(-2, "compute 'per_plane'", "executors")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: compute 'per_plane': executors is -2; give an integer, 1 or more.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 and (most is None or value <= most):
        return value
    valid = ", 1 or more" if most is None else f" from 1 to {most}"
    raise TopologyError(f"{where}: {option} is {value!r}; give an integer{valid}.")


def _distinct_names(columns: tuple[object, ...], where: str) -> tuple[str, ...]:
    names: list[str] = []
    for column in columns:
        if not isinstance(column, str) or not column:
            raise TopologyError(f"{where}: {column!r} is not a column name; give a str that is not empty.")
        if column in names:
            raise TopologyError(f"{where}: column {column!r} is named twice; name it once.")
        names.append(column)
    return tuple(names)


def _instance_wanted(value: object, kind: str, example: str) -> str:
    if isinstance(value, type):
        return f"{value.__name__} is a class; give an instance of it, {value.__name__}(...)."
    article = "an" if kind[0] in "AEIO" else "a"
    return f"{value!r} is not {article} {kind}; give one, such as {example}."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or repr(function)


def _type(value: object) -> str:
    return f"of type {type(value).__name__}"
