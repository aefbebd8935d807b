"""What can be known to be wrong about an operator before it runs, said when it is written down."""

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
from dask_elastic.vocab.errors import TopologyError

MOST_SHARDS = 65_536
MARKS = "?#@"
"""What the engine's own names for the parts of a state value end in."""


def check_name(name: object, what: str) -> str:
    """Return the name of a topology or an operator, or say why it cannot be one.

    Parameters
    ----------
    name : object
        The name given.
    what : str
        What is named, for the message.

    Returns
    -------
    str
        The name.

    Raises
    ------
    TopologyError
        When it is no text, is empty, or cannot be printed.

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
        raise TopologyError(f"{what}: the name {name!r} has characters that cannot be printed; leave these out.")
    return name


def check_source(source: object, name: str) -> Source:
    """Return the source, or say why it cannot be one.

    Parameters
    ----------
    source : object
        What was given as source.
    name : str
        The operator's name.

    Returns
    -------
    Source
        The source.

    Raises
    ------
    TopologyError
        When it is no source, or its instances, rate, event time or slack are out of range.
    """
    where = f"source {name!r}"
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
    """Return the sink, or say why it cannot be one.

    Parameters
    ----------
    sink : object
        What was given as sink.
    where : str
        The operator, for the message.

    Returns
    -------
    Sink
        The sink.

    Raises
    ------
    TopologyError
        When it is no sink.
    """
    if not isinstance(sink, Sink):
        raise TopologyError(f"{where}: {_instance_wanted(sink, 'Sink', 'sinks.Parquet(...)')}")
    return sink


def check_function(function: object, where: str, *arguments: str) -> Callable[..., Any]:
    """Return the function, or say why the engine could not call it.

    Parameters
    ----------
    function : object
        What was given as function.
    where : str
        The operator, for the message.
    *arguments : str
        What the engine will call it with.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    TopologyError
        When it cannot be called, is a coroutine function, or takes other arguments.

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
            f"{where}: {_called(function)} is asynchronous, task threads are not; give a plain function."
        )
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # Not every function written in C can say what it takes.
        return function
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TopologyError(
            f"{where}: the function {_called(function)}{signature} cannot be called as {call}: {error}."
        ) from None
    return function


def check_predicate(predicate: object, where: str) -> Callable[..., Any] | pc.Expression:
    """Return the predicate of a filter, or say why it cannot be one.

    Parameters
    ----------
    predicate : object
        A function of a batch, or an expression.
    where : str
        The operator, for the message.

    Returns
    -------
    callable or pyarrow.compute.Expression
        The predicate.

    Raises
    ------
    TopologyError
        When it is neither.
    """
    return predicate if isinstance(predicate, pc.Expression) else check_function(predicate, where, "batch")


def check_columns(columns: object, where: str) -> tuple[str, ...] | None:
    """Return the columns that an operator reads as a tuple, or say why they cannot be read.

    Parameters
    ----------
    columns : object
        A list or tuple of names, or None.
    where : str
        The operator, for the message.

    Returns
    -------
    tuple of str or None
        The names; None for all.

    Raises
    ------
    TopologyError
        When it is no list of different names.

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
        raise TopologyError(f"{where}: columns is empty; name what is read, or leave it out to read all columns.")
    return _distinct_names(tuple(columns), f"{where}: columns")


def check_keys(columns: tuple[object, ...], where: str) -> tuple[str, ...]:
    """Return the key columns, or say why they cannot be keys.

    Parameters
    ----------
    columns : tuple
        What `key_by` was called with.
    where : str
        The stream, for the message.

    Returns
    -------
    tuple of str
        The names.

    Raises
    ------
    TopologyError
        When there are none, or they are not different names.
    """
    if not columns:
        raise TopologyError(f"{where}: key_by got no columns; name at least one, as in key_by('plane').")
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        names = ", ".join(repr(column) for column in columns[0])
        raise TopologyError(f"{where}: key_by takes each name by itself; write key_by({names}).")
    return _distinct_names(columns, f"{where}: key_by")


def check_logic(logic: object, keys: tuple[str, ...], where: str) -> Mapping[str, Aggregate] | Callable[..., Any]:
    """Return the logic of a compute, or say why it cannot run.

    Parameters
    ----------
    logic : object
        A dict of aggregates by output column, or a function, of a batch and its state unless decorated otherwise.
    keys : tuple of str
        The key columns, which are in the output as well.
    where : str
        The operator, for the message.

    Returns
    -------
    mapping of str to Aggregate, or callable
        The logic; a copy when it is a dict, so that later changes to that do not reach the topology.

    Raises
    ------
    TopologyError
        When it is neither, or an output has no name of its own.
    """
    if not isinstance(logic, Mapping):
        if isinstance(logic, Aggregate):
            raise TopologyError(f"{where}: an aggregate needs an output column; write compute({{'name': {logic!r}}}).")
        if isinstance(logic, LeveledLogic):
            check_function(logic.function, f"{where}: {logic.decorator}", *logic.arguments)
            return logic
        return _check_batch_function(logic, where)
    if not logic:
        raise TopologyError(f"{where}: the dict of aggregates is empty; give one aggregate at least.")
    for output, aggregate in logic.items():
        if not isinstance(output, str) or not output:
            raise TopologyError(f"{where}: the output column {output!r} is no name; give a str that is not empty.")
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
    """Return the declared state of a compute, or say why it cannot be kept.

    Parameters
    ----------
    state : object
        A dict of Arrow types, `object`, `Value`, `List` or `Map` by value name; or None.
    logic : mapping or callable
        The logic that the state is for.
    keys : tuple of str
        The key columns, beside which the state is read.
    where : str
        The operator, for the message.

    Returns
    -------
    mapping of str to type, or None
        A copy of the declaration.

    Raises
    ------
    TopologyError
        When aggregates, which bring their own state, are given some, or names or types cannot be used.
    """
    if state is None:
        return None
    if isinstance(logic, Mapping):
        raise TopologyError(f"{where}: aggregates keep their own state; leave state= out, or give a function as logic.")
    if not isinstance(state, Mapping):
        raise TopologyError(f"{where}: state is {_type(state)}; give a dict such as {{'last': pa.float64()}}.")
    for name, kind in state.items():
        if not isinstance(name, str) or not name:
            raise TopologyError(f"{where}: the state value {name!r} is no name; give a str that is not empty.")
        if name in keys:
            raise TopologyError(f"{where}: {name!r} is a key column and a state value; rename the state value.")
        if name[-1] in MARKS:
            raise TopologyError(f"{where}: the state value {name!r} ends in {name[-1]!r}; leave that out of its name.")
        if isinstance(kind, type) and issubclass(kind, StateKind):
            raise TopologyError(f"{where}: state value {name!r}: {_instance_wanted(kind, 'StateKind', '')}")
        if kind is not object and not isinstance(kind, pa.DataType | StateKind):
            raise TopologyError(
                f"{where}: state value {name!r} is declared as {kind!r}; give a pyarrow type such as pa.float64(), "
                "object for any Python object, or a Value, List or Map."
            )
    return dict(state)


def check_count(value: object, where: str, option: str, most: int | None = None) -> int:
    """Return an option that counts something, or say why it cannot.

    Parameters
    ----------
    value : object
        The option's value.
    where : str
        The operator, for the message.
    option : str
        The option's name.
    most : int, optional
        The largest value allowed.

    Returns
    -------
    int
        The value.

    Raises
    ------
    TopologyError
        When it is no whole number from 1 to `most`.

    Examples
    --------
    >>> check_count(-2, "compute 'per_plane'", "executors")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: compute 'per_plane': executors is -2; give a whole number from 1 on.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 and (most is None or value <= most):
        return value
    upwards = "on" if most is None else f"to {most}"
    raise TopologyError(f"{where}: {option} is {value!r}; give a whole number from 1 {upwards}.")


def _distinct_names(columns: tuple[object, ...], where: str) -> tuple[str, ...]:
    names: list[str] = []
    for column in columns:
        if not isinstance(column, str) or not column:
            raise TopologyError(f"{where}: {column!r} is no column name; give a str that is not empty.")
        if column in names:
            raise TopologyError(f"{where}: column {column!r} is named twice; name it once.")
        names.append(column)
    return tuple(names)


def _instance_wanted(value: object, kind: str, example: str) -> str:
    if isinstance(value, type):
        return f"{value.__name__} is a class; give an instance of it, {value.__name__}(...)."
    return f"{value!r} is no {kind}; give one such as {example}."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", None) or repr(function)


def _type(value: object) -> str:
    return f"of type {type(value).__name__}"
