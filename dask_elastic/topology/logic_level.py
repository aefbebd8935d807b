"""Decorators for user functions that process a row, or a key and its rows, instead of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

import pyarrow as pa

from dask_elastic.vocab.errors import TopologyError

OutputColumns: TypeAlias = pa.Schema | Mapping[str, pa.DataType]
Function: TypeAlias = Callable[..., Any]
Level = TypeVar("Level", bound="LeveledLogic")


class LeveledLogic:
    """A decorated user function; base class of `RowLogic` and `KeyLogic`. Calling it calls the function, as tests do.

    Parameters
    ----------
    function : callable
        The function.
    output : Schema or mapping of str to DataType, optional
        The columns of the rows that it returns as dicts.

    Attributes
    ----------
    decorator : str
        The name of the decorator.
    arguments : tuple of str
        The names of the arguments with which the engine calls the function.

    Raises
    ------
    TopologyError
        When the function is not callable, or the output is neither a schema nor a mapping of types.
    """

    decorator: str
    arguments: tuple[str, ...]

    def __init__(self, function: Function, output: OutputColumns | None = None) -> None:
        if not callable(function):
            raise TopologyError(f"{self.decorator}: {function!r} is not a function; write @{self.decorator} above one.")
        self.function = function
        self.output = _schema(output, self.decorator)

        # Operators get their names from `__name__`; `inspect.signature` follows `__wrapped__`.
        self.__name__: str = getattr(function, "__name__", self.decorator)
        self.__wrapped__ = function

    def __call__(self, *arguments: Any) -> Any:
        """Call the function.

        Parameters
        ----------
        *arguments : object
            The arguments of the function.

        Returns
        -------
        object
            What the function returns.
        """
        return self.function(*arguments)

    def __repr__(self) -> str:
        return f"{self.decorator}({self.__name__})"


class RowLogic(LeveledLogic):
    """A function of a row and the state of its key; made by `per_row`.

    Parameters
    ----------
    function : callable
        The function.
    output : Schema or mapping of str to DataType, optional
        The columns of the rows that it returns as dicts.
    """

    decorator = "per_row"
    arguments = ("row", "state")


class KeyLogic(LeveledLogic):
    """A function of a key, its rows in a batch, and its state; made by `per_key`.

    Parameters
    ----------
    function : callable
        The function.
    output : Schema or mapping of str to DataType, optional
        The columns of the rows that it returns as dicts.
    """

    decorator = "per_key"
    arguments = ("key", "batch", "state")


@overload
def per_row(function: Function) -> RowLogic: ...


@overload
def per_row(*, output: OutputColumns | None = None) -> Callable[[Function], RowLogic]: ...


def per_row(function: Function | None = None, *, output: OutputColumns | None = None) -> Any:
    """Decorate a function `process(row, state)` to be called for each row.

    Parameters
    ----------
    function : callable
        Takes a row as a dict by column, and the state of the row's key. Returns the rows to emit: None, a dict, or an
        iterable of dicts.
    output : Schema or mapping of str to DataType, optional
        The columns of the emitted rows. By default inferred from what the function returns for the first batch.

    Returns
    -------
    RowLogic
        The logic to pass to `KeyedStream.compute`.

    Raises
    ------
    TopologyError
        When the function is not callable, or the output is neither a schema nor a mapping of types.

    Notes
    -----
    The easiest and the slowest kind of logic: Python runs once per row.

    Examples
    --------
    >>> @per_row(output={"plane": pa.string(), "change": pa.int64()})
    ... def change(row, state):
    ...     before = state["last"]
    ...     state["last"] = row["delay"]
    ...     return None if before is None else {"plane": row["plane"], "change": row["delay"] - before}
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "a"], "delay": [3, 5]}))
    >>> topology = de.Topology("delays")
    >>> changes = topology.source("flights", flights).key_by("plane").compute(change, state={"last": pa.int64()})
    >>> changes.sink(de.sinks.Collect(), name="out")
    >>> run(topology).outputs["out"].to_pylist()
    [{'plane': 'a', 'change': 2}]
    """
    return _decorated(RowLogic, function, output)


@overload
def per_key(function: Function) -> KeyLogic: ...


@overload
def per_key(*, output: OutputColumns | None = None) -> Callable[[Function], KeyLogic]: ...


def per_key(function: Function | None = None, *, output: OutputColumns | None = None) -> Any:
    """Decorate a function `process(key, batch, state)` to be called for each key of a batch with its rows.

    Parameters
    ----------
    function : callable
        Takes the key (a tuple if there are several key columns), a RecordBatch of its rows in order, and its state.
        Returns the rows to emit: None, a RecordBatch, a Table, a pandas or Polars frame, a dict for one row, or an
        iterable of these.
    output : Schema or mapping of str to DataType, optional
        The columns of rows emitted as dicts. By default inferred from what the function returns for the first batch.

    Returns
    -------
    KeyLogic
        The logic to pass to `KeyedStream.compute`.

    Raises
    ------
    TopologyError
        When the function is not callable, or the output is neither a schema nor a mapping of types.

    Notes
    -----
    Python runs once per key and batch: about as fast as vectorised logic if a key has many rows in a batch, as slow as
    `per_row` if it has one.

    Examples
    --------
    >>> @per_key
    ... def longest(plane, batch, state):
    ...     state["longest"] = max(state.get("longest", 0), max(batch["distance"].to_pylist()))
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "distance": [3, 7, 5]}))
    >>> topology = de.Topology("distances")
    >>> _ = topology.source("flights", flights).key_by("plane").compute(longest, state={"longest": pa.int64()})
    >>> run(topology).state["longest"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'longest': [5, 7]}
    """
    return _decorated(KeyLogic, function, output)


def _decorated(level: type[Level], function: Function | None, output: OutputColumns | None) -> Any:
    if function is not None:
        return level(function, output)
    return lambda decorated: level(decorated, output)


def _schema(output: object, where: str) -> pa.Schema | None:
    if output is None or isinstance(output, pa.Schema):
        return output
    if not isinstance(output, Mapping) or not all(
        isinstance(name, str) and isinstance(kind, pa.DataType) for name, kind in output.items()
    ):
        raise TopologyError(
            f"{where}: output is {output!r}; give a pyarrow schema, or a dict such as {{'change': pa.float64()}}."
        )
    return pa.schema(dict(output))
