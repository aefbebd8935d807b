"""Checks of functions over windows, and the columns of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from dask_elastic.topology import validation
from dask_elastic.topology.logic_level import KeyLogic, LeveledLogic, RowLogic
from dask_elastic.topology.windowing import CountWindow, Windowing
from dask_elastic.vocab.errors import TopologyError

_ARGUMENTS = {KeyLogic: ("key", "rows", "window"), RowLogic: ("row", "state")}


def check_function(logic: object, windowing: Windowing, keys: tuple[str, ...], where: str) -> Callable[..., Any]:
    """Check the function of a windowed compute.

    Parameters
    ----------
    logic : object
        The function, which may be decorated with `per_key` or `per_row`.
    windowing : Windowing
        The windows.
    keys : tuple of str
        The key columns.
    where : str
        The operator, for the error text.

    Returns
    -------
    callable
        The function.

    Raises
    ------
    TopologyError
        When it cannot be called, or its results have columns of the windows.

    Examples
    --------
    >>> from dask_elastic.topology.windows.definitions import tumbling
    >>> windowing = Windowing((tumbling("1h"),), ("at",))
    >>> check_function(lambda rows: rows, windowing, ("plane",), "compute 'hourly'")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: compute 'hourly': the function <lambda>(rows) cannot be called as ...
    """
    if isinstance(windowing.windows[0], CountWindow):
        raise TopologyError(
            f"{where}: functions are of windows over event time, not of {windowing.windows[0]}; keep the rows of a key "
            "in a List of state."
        )
    if windowing.joins_results and windowing.revised:
        raise TopologyError(
            f"{where}: functions of sessions are called once for each; omit allowed_lateness and emit, and give the "
            "source slack for rows that come late."
        )
    if windowing.share is True:
        raise TopologyError(
            f"{where}: share=True shares partial results, but a function without merge= gets the rows of each window; "
            "pass a merge=, which merges two partial results, or omit share."
        )
    if not callable(logic):
        raise TopologyError(
            f"{where}: the logic is {logic!r}; give a dict of aggregates such as {{'flights': agg.Count()}}, or a "
            "function(rows, instances)."
        )
    for column in windowing.output_columns:
        if column in keys:
            raise TopologyError(
                f"{where}: results of windows have a column {column!r}, but the key column {column!r} has this name, "
                "too; rename the key column."
            )
    if isinstance(logic, LeveledLogic):
        validation.check_function(logic.function, f"{where}: {logic.decorator}", *_ARGUMENTS[type(logic)])
        _check_output(logic, (*keys, *windowing.output_columns), where)
        return logic
    return validation.check_function(logic, where, "rows", "instances")


def result_schema(logic: Callable[..., Any] | None, columns: Mapping[str, pa.DataType]) -> pa.Schema | None:
    """Return the columns of the results of a function over windows.

    Parameters
    ----------
    logic : callable
        The function.
    columns : mapping of str to DataType
        Those of the key and the instance.

    Returns
    -------
    Schema or None
        The columns; None if the function does not declare its own.

    Examples
    --------
    >>> from dask_elastic.topology.logic_level import per_row
    >>> result_schema(per_row(print, output={"rank": pa.int64()}), {"plane": pa.string()})
    plane: string
    rank: int64
    """
    # What a function per key returns as a table has columns of its own.
    if not isinstance(logic, RowLogic) or logic.output is None:
        return None
    return pa.schema([*columns.items(), *logic.output])


def _check_output(logic: LeveledLogic, taken: tuple[str, ...], where: str) -> None:
    for name in [] if logic.output is None else logic.output.names:
        if name in taken:
            raise TopologyError(
                f"{where}: results have the column {name!r} from the key or the window, but output= declares it, too; "
                "omit it there."
            )
