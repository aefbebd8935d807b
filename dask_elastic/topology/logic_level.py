"""At which level a function of one's own works: a row, a key and its rows, or, undecorated, a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

import pyarrow as pa

from dask_elastic.vocab.errors import TopologyError

Output: TypeAlias = pa.Schema | Mapping[str, pa.DataType]
Function: TypeAlias = Callable[..., Any]
Level = TypeVar("Level", bound="LeveledLogic")


class LeveledLogic:
    """A function that is called for less than a batch; it can be called as before, which is how it is tested.

    Parameters
    ----------
    function : callable
        The function.
    output : Schema or mapping of str to DataType, optional
        The columns of the rows that it returns as dicts.
    """

    decorator: str
    arguments: tuple[str, ...]

    def __init__(self, function: Function, output: Output | None = None) -> None:
        if not callable(function):
            raise TopologyError(f"{self.decorator}: {function!r} is no function; write @{self.decorator} above one.")
        self.function = function
        self.output = _schema(output, self.decorator)

        # By these, operators are named after the function, and its signature is found.
        self.__name__: str = getattr(function, "__name__", self.decorator)
        self.__wrapped__ = function

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.function(*arguments)

    def __repr__(self) -> str:
        return f"{self.decorator}({self.__name__})"


class RowLogic(LeveledLogic):
    """A function of a row and the state of its key; see `per_row`."""

    decorator = "per_row"
    arguments = ("row", "state")


class KeyLogic(LeveledLogic):
    """A function of a key, its rows in a batch, and its state; see `per_key`."""

    decorator = "per_key"
    arguments = ("key", "batch", "state")


@overload
def per_row(function: Function) -> RowLogic: ...


@overload
def per_row(*, output: Output | None = None) -> Callable[[Function], RowLogic]: ...


def per_row(function: Function | None = None, *, output: Output | None = None) -> Any:
    """Let a function `process(row, state)` be called for each row.

    Parameters
    ----------
    function : callable
        Takes a row as a dict by column, and the state of the row's key. Returns None, a dict, or an iterable of dicts:
        the rows to put out.
    output : Schema or mapping of str to DataType, optional
        The columns put out. Without it their types are those of what is returned for the first batch.

    Returns
    -------
    RowLogic
        What `compute` takes.

    Notes
    -----
    The easiest level and the slowest: Python runs once per row.

    Examples
    --------
    >>> @per_row(output={"plane": pa.string(), "change": pa.int64()})
    ... def change(row, state):
    ...     before = state["last"]
    ...     state["last"] = row["delay"]
    ...     return None if before is None else {"plane": row["plane"], "change": row["delay"] - before}
    >>> change
    per_row(change)
    """
    return _decorated(RowLogic, function, output)


@overload
def per_key(function: Function) -> KeyLogic: ...


@overload
def per_key(*, output: Output | None = None) -> Callable[[Function], KeyLogic]: ...


def per_key(function: Function | None = None, *, output: Output | None = None) -> Any:
    """Let a function `process(key, batch, state)` be called for each key of a batch with all of its rows there.

    Parameters
    ----------
    function : callable
        Takes the key (a tuple where there are several key columns), a RecordBatch of its rows in order, and its state.
        Returns None, a RecordBatch, a Table, a dict as a row, or an iterable of these: the rows to put out.
    output : Schema or mapping of str to DataType, optional
        The columns of dicts that are put out. Without it their types are those of what is returned for the first batch.

    Returns
    -------
    KeyLogic
        What `compute` takes.

    Notes
    -----
    Python runs once per key and batch: as fast as vectorised logic where a key has many rows in a batch, and as slow as
    `per_row` where it has one.

    Examples
    --------
    >>> @per_key
    ... def longest(plane, batch, state):
    ...     state["longest"] = max(state.get("longest", 0), max(batch["distance"].to_pylist()))
    >>> longest
    per_key(longest)
    """
    return _decorated(KeyLogic, function, output)


def _decorated(level: type[Level], function: Function | None, output: Output | None) -> Any:
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
