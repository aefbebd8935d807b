"""From the arguments of a join to its definition, with the errors that can be found then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, get_args

import pyarrow as pa

from dask_elastic.topology.duration import parse_duration
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.joins.joining import MOST, How, JoinSide
from dask_elastic.topology.known_schemas import known_output
from dask_elastic.topology.operators import Compute
from dask_elastic.topology.schema import plain_schema
from dask_elastic.topology.windowing import WINDOW_END, WINDOW_START, EventWindow, duration_text
from dask_elastic.topology.windows.event_time import columns_of, origins_of
from dask_elastic.vocab.errors import TopologyError

SideSchema: TypeAlias = pa.Schema | Mapping[str, pa.DataType]
"""The columns of a side that are joined."""

_INTERNAL = "__"


def side_of(
    topology: OperatorGraph,
    producers: Sequence[str],
    keys: tuple[str, ...],
    time: str | None,
    schema: SideSchema | None,
    where: str,
    which: str,
) -> JoinSide:
    """Return one side of a join.

    Parameters
    ----------
    topology : OperatorGraph
        The topology.
    producers : sequence of str
        The operators whose rows it has.
    keys : tuple of str
        Its key columns.
    time : str or None
        Its column of event time; None for that of its sources.
    schema : Schema, mapping of str to DataType, or None
        The columns that are joined; None for all that are known.
    where, which : str
        The join, and "left" or "right", for error texts.

    Returns
    -------
    JoinSide
        The side, without places.

    Raises
    ------
    TopologyError
        When the columns are not known, or there is no such key or time.
    """
    known = known_output(topology, producers) if schema is None else pa.schema(_checked(schema, where, which))
    label = f"{where}: the {which} side, {' + '.join(map(repr, producers))},"
    if known is None:
        raise TopologyError(
            f"{label} has columns that are not known, because its rows come from a function or from a source without "
            f"a schema; give {which}_schema={{'column': pa.int64(), ...}} with the columns to join."
        )
    known = plain_schema(known)
    chosen = _time_column(topology, producers, known, label, which) if time is None else time
    for what, name in (*(("key", key) for key in keys), ("time", chosen)):
        if name not in known.names:
            columns = ", ".join(map(repr, known.names))
            raise TopologyError(f"{label} has no column {name!r}, its {what}; the columns are {columns}.")
    for name in known.names:
        if name.startswith(_INTERNAL):
            raise TopologyError(f"{label} has a column {name!r}; rename it, names of joined columns do not begin so.")
    _check_not_late(topology, producers, chosen, label)
    kind = known.field(chosen).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise TopologyError(f"{label} has the time {chosen!r}, which is {kind}; give a column of timestamps or dates.")
    return JoinSide(keys, chosen, known)


def _checked(schema: object, where: str, which: str) -> Any:
    pairs = schema.items() if isinstance(schema, Mapping) else ()
    if isinstance(schema, pa.Schema) or (pairs and all(isinstance(kind, pa.DataType) for _, kind in pairs)):
        return schema if isinstance(schema, pa.Schema) else dict(pairs)
    raise TopologyError(
        f"{where}: {which}_schema is {schema!r}; give a pyarrow schema, or a dict such as {{'order': pa.int64()}}."
    )


def _time_column(topology: OperatorGraph, producers: Sequence[str], known: pa.Schema, label: str, which: str) -> str:
    """Return the column of event time of the sources of a stream."""
    found = {columns_of(operator) for operator in origins_of(topology, producers)}
    if len(found) == 1 and len(names := next(iter(found))) == 1 and names[0] in known.names:
        return names[0]
    number = "first" if which == "left" else "second"
    hint = f"; that of results of windows is {WINDOW_END!r}" if (WINDOW_START, WINDOW_END) in found else ""
    raise TopologyError(
        f"{label} has no column that is known to be its event time; name it as the {number} of time=(left, right)"
        f"{hint}."
    )


def _check_not_late(topology: OperatorGraph, producers: Sequence[str], time: str, label: str) -> None:
    """Refuse results of windows that come when the watermark has passed their time, so that a join would drop them."""
    for operator in origins_of(topology, producers) if time == WINDOW_START else ():
        if columns_of(operator) == (WINDOW_START, WINDOW_END):
            raise TopologyError(
                f"{label} has the time {WINDOW_START!r}, at which results of compute {operator.name!r} are late, and "
                f"would be dropped: they come when their window closes. Give {WINDOW_END!r}."
            )
    # Behind a map or a filter, corrections are up to the user.
    for operator in map(topology.operator, producers) if time == WINDOW_END else ():
        if isinstance(operator, Compute) and operator.windowing is not None and operator.windowing.allowed_lateness:
            raise TopologyError(
                f"{label} has results that are corrected within the allowed lateness of compute {operator.name!r}; "
                "corrections are late, and would be dropped. Choose some results in a filter before key_by, such as "
                ".filter(pc.field('revision') == 0)."
            )


def check_key_types(left: JoinSide, right: JoinSide, where: str) -> None:
    """Check that the keys of both sides have the same number and types.

    Parameters
    ----------
    left, right : JoinSide
        The sides.
    where : str
        The join, for the error text.

    Raises
    ------
    TopologyError
        When they differ; the message names both types, and the cast.
    """
    if len(left.keys) != len(right.keys):
        raise TopologyError(
            f"{where}: the left side has the keys {left.keys}, the right side {right.keys}; give key_by the same "
            "number of columns on both sides."
        )
    for one, other in zip(left.keys, right.keys, strict=True):
        kinds = left.schema.field(one).type, right.schema.field(other).type
        if kinds[0] != kinds[1]:
            wanted = _common_type(*kinds)
            cast, which = (other, "right") if wanted == kinds[0] else (one, "left")
            raise TopologyError(
                f"{where}: the key {one!r} of the left side is {kinds[0]}, but {other!r} of the right side is "
                f"{kinds[1]}; keys of one type join. Cast {cast!r} of the {which} side in a map before key_by, with "
                f"batch[{cast!r}].cast({str(wanted)!r})."
            )


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type to which to cast: the wider one of two of a kind, else the left one."""
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp, pa.types.is_date)
    wider = any(of(one) and of(other) for of in numbers) and other.bit_width > one.bit_width
    return other if wider or pa.types.is_large_string(other) else one


def check_how(how: object, valid: Sequence[str], where: str) -> Any:
    """Return how a join treats rows without a match.

    Parameters
    ----------
    how : object
        What the user gave.
    valid : sequence of str
        The valid words.
    where : str
        The join, for the error text.

    Returns
    -------
    str
        The word.

    Raises
    ------
    TopologyError
        When it is another.
    """
    if how not in valid:
        raise TopologyError(f"{where}: how is {how!r}; give one of {', '.join(map(repr, valid))}.")
    return how


HOWS: tuple[str, ...] = get_args(How)


def bounds(within: object, where: str) -> tuple[int, int]:
    """Return the bounds of an interval in microseconds.

    Parameters
    ----------
    within : duration, or pair of durations
        One duration for both directions, or the least and the greatest right time minus left time.
    where : str
        The join, for the error text.

    Returns
    -------
    lower, upper : int
        The bounds.

    Raises
    ------
    TopologyError
        When they are no durations, or the lower one is above the upper one.

    Examples
    --------
    >>> bounds("1s", "join"), bounds(("-1ms", "0s"), "join")
    ((-1000000, 1000000), (-1000, 0))
    """
    if isinstance(within, list | tuple):
        if len(within) != 2:
            raise TopologyError(f"{where}: within is {within!r}; give two durations, as in within=('-1h', '2h').")
        lower, upper = (signed_microseconds(bound, f"{where}: within") for bound in within)
    else:
        upper = signed_microseconds(within, f"{where}: within")
        lower = -upper
    if lower > upper:
        raise TopologyError(
            f"{where}: within={within!r} begins after it ends; give the least time of the right row minus that of the "
            "left first, as in within=('-1h', '2h')."
        )
    return lower, upper


def signed_microseconds(duration: object, where: str) -> int:
    """Return a duration that may be negative in microseconds.

    Parameters
    ----------
    duration : str, float or timedelta
        The duration; text may begin with a sign.
    where : str
        What it is for, for the error text.

    Returns
    -------
    int
        Microseconds.

    Raises
    ------
    TopologyError
        When it is no duration, too long, or not a whole number of microseconds.

    Examples
    --------
    >>> signed_microseconds("-1.5 s", "within"), signed_microseconds(2, "within")
    (-1500000, 2000000)
    """
    seconds = parse_duration(duration, where)
    if not abs(seconds) < MOST / 1e6:
        raise TopologyError(f"{where} is {duration!r}; give a duration of at most 73,000 years.")
    found = round(seconds * 1e6)
    if abs(found - seconds * 1e6) > 1e-3:
        raise TopologyError(f"{where} is {duration!r}; give whole microseconds, in which times are compared.")
    return found


def check_window(window: object, where: str) -> EventWindow:
    """Return the window of a join.

    Parameters
    ----------
    window : EventWindow or duration
        The window; a duration is that of tumbling windows.
    where : str
        The join, for the error text.

    Returns
    -------
    EventWindow
        The window.

    Raises
    ------
    TopologyError
        When it is none, of another kind, or leaves gaps.
    """
    if isinstance(window, EventWindow):
        if window.frequency > window.length:
            raise TopologyError(
                f"{where}: the window, {window}, leaves gaps, whose rows would be lost; filter these rows out before, "
                f"and give a frequency of at most {duration_text(window.length)}."
            )
        return window
    if isinstance(window, str | int | float) or hasattr(window, "total_seconds"):
        length = signed_microseconds(window, f"{where}: window")
        if length > 0:
            return EventWindow(0, length, length)
    raise TopologyError(
        f"{where}: window is {window!r}; give a length such as '10min', or a window over event time such as "
        "de.windows.hopping('1h', '10min'). Sessions and windows of counts differ between the sides."
    )


def check_output_names(schema: pa.Schema, where: str) -> None:
    """Check that no two columns of the results have one name.

    Parameters
    ----------
    schema : Schema
        The columns of the results.
    where : str
        The join, for the error text.

    Raises
    ------
    TopologyError
        When two have.
    """
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise TopologyError(
            f"{where}: the results would have more than one column {twice[0]!r}; give other suffixes=(left, right), or "
            "rename the column in a map."
        )
