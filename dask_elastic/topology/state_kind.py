"""Declarations of keyed state: a value, a list or a map per key, optionally with a time to live."""

from __future__ import annotations

import datetime
from typing import TypeAlias

import pyarrow as pa

from dask_elastic.topology.duration import seconds_of
from dask_elastic.topology.schema import kept_type
from dask_elastic.vocab.errors import TopologyError
from dask_elastic.vocab.state_record import Clock

Duration: TypeAlias = str | float | datetime.timedelta
Element: TypeAlias = pa.DataType | type[object]

STORES = ("memory", "disk", "auto")
"""Where an operator may keep its state; "auto" means in memory until that is short."""


class StateKind:
    """One entry of a `state=` declaration; base class of `Value`, `List` and `Map`. Compared by its parts.

    Parameters
    ----------
    type : DataType or object
        The Arrow type of a value, a list's element or a map's value; `object` for any Python value.
    ttl : str, float or timedelta, optional
        The time to live after the last write, such as "10 min"; a number means seconds. Unlimited by default.
    ttl_clock : {"processing", "event"}
        Whether it expires by the clock of the executor's home, or by the watermark.

    Attributes
    ----------
    type : DataType or object
        As the parameter.
    ttl : float or None
        The time to live in seconds; None for unlimited.
    ttl_clock : {"processing", "event"}
        As the parameter.

    Raises
    ------
    TopologyError
        If the type, the time to live or its clock is invalid.
    """

    type: Element
    ttl: float | None
    ttl_clock: Clock = "processing"

    def __init__(self, type: Element, ttl: Duration | None = None, ttl_clock: Clock = "processing") -> None:
        what = self.__class__.__name__
        self.type = _element(type, f"{what}: type")
        self.ttl = None if ttl is None else seconds_of(ttl, f"{what}: ttl")
        if ttl_clock not in ("processing", "event"):
            raise TopologyError(f'{what}: ttl_clock is {ttl_clock!r}; give "processing" or "event".')
        if ttl_clock == "event" and self.ttl is None:
            raise TopologyError(f'{what}: ttl_clock is "event", but there is no time to live; give ttl=, too.')
        self.ttl_clock = ttl_clock

    @property
    def ttl_micros(self) -> int | None:
        """The time to live in microseconds of event time; None if it does not expire in event time."""
        return None if self.ttl is None or self.ttl_clock != "event" else round(self.ttl * 1e6)

    def _types(self) -> tuple[Element, ...]:
        return (self.type,)

    def _parts(self) -> tuple[object, ...]:
        return *self._types(), self.ttl, self.ttl_clock

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateKind) and type(self) is type(other) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash((type(self), self._parts()))

    def __repr__(self) -> str:
        written = ["object" if part is object else str(part) for part in self._types()]
        ends = [] if self.ttl is None else [f"ttl={self.ttl:g}"]
        ends += [f"ttl_clock={self.ttl_clock!r}"] if self.ttl_clock == "event" else []
        return f"{type(self).__name__}({', '.join(written + ends)})"


class Value(StateKind):
    """One value per key. An Arrow type alone declares the same without a `ttl`.

    Parameters
    ----------
    type : DataType or object
        An Arrow type, or `object` for any Python value that can be pickled.
    ttl : str, float or timedelta, optional
        How long a value is kept after it was last set, such as "10 min"; a number means seconds. Unlimited by default.
    ttl_clock : {"processing", "event"}
        The clock of the time to live: that of the executor's home, or event time. In event time, a value that a row
        sets at its time t expires when the watermark reaches t + ttl.

    Raises
    ------
    TopologyError
        If the type, the time to live or its clock is invalid.

    Examples
    --------
    >>> Value(pa.float64(), ttl="10 min")
    Value(double, ttl=600)
    >>> Value(pa.float64(), ttl="10 min", ttl_clock="event")
    Value(double, ttl=600, ttl_clock='event')
    >>> import dask_elastic as de
    >>> @de.per_row
    ... def remember(row, state):
    ...     state["last"] = row["delay"]
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "a"], "delay": [3, 5]}))
    >>> topology = de.Topology("delays")
    >>> _ = topology.source("flights", flights).key_by("plane").compute(remember, state={"last": de.Value(pa.int64())})
    >>> from dask_elastic.testing import run
    >>> run(topology).state["remember"].to_pydict()
    {'plane': ['a'], 'last': [5]}
    """


class List(StateKind):
    """A list per key, without nulls, in the order in which elements were appended.

    Parameters
    ----------
    type : DataType or object
        The type of its elements: an Arrow type, or `object` for any Python value that can be pickled.
    ttl : str, float or timedelta, optional
        How long each element is kept after it was appended; a number means seconds. Unlimited by default.
    ttl_clock : {"processing", "event"}
        The clock of the time to live, as for `Value`.

    Raises
    ------
    TopologyError
        If the type, the time to live or its clock is invalid.

    Examples
    --------
    >>> List(pa.string(), ttl="1h")
    List(string, ttl=3600)
    >>> import dask_elastic as de
    >>> @de.per_row
    ... def remember(row, state):
    ...     state["delays"].append(row["delay"])
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "a"], "delay": [3, 5]}))
    >>> topology = de.Topology("delays")
    >>> _ = topology.source("flights", flights).key_by("plane").compute(remember, state={"delays": de.List(pa.int64())})
    >>> from dask_elastic.testing import run
    >>> run(topology).state["remember"].to_pydict()
    {'plane': ['a'], 'delays': [[3, 5]]}
    """


class Map(StateKind):
    """A map per key, without nulls, in the order in which its keys were first put.

    Parameters
    ----------
    key : DataType
        The Arrow type of its keys: integers, booleans, text, bytes, dates, times, timestamps or durations.
    type : DataType or object
        The type of its values: an Arrow type, or `object` for any Python value that can be pickled.
    ttl : str, float or timedelta, optional
        How long each entry is kept after it was last put; a number means seconds. Unlimited by default.
    ttl_clock : {"processing", "event"}
        The clock of the time to live, as for `Value`.

    Raises
    ------
    TopologyError
        If a type, the time to live or its clock is invalid, or equality of the key type is not exact, such as for
        floats.

    Examples
    --------
    >>> Map(pa.string(), pa.int64())
    Map(string, int64)
    >>> import dask_elastic as de
    >>> @de.per_row
    ... def remember(row, state):
    ...     state["by_dest"][row["dest"]] = row["delay"]
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "a"], "dest": ["SFO", "JFK"], "delay": [3, 5]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute(remember, state={"by_dest": de.Map(pa.string(), pa.int64())})
    >>> from dask_elastic.testing import run
    >>> run(topology).state["remember"].to_pydict()
    {'plane': ['a'], 'by_dest': [[('SFO', 3), ('JFK', 5)]]}
    """

    key: pa.DataType

    def __init__(
        self, key: pa.DataType, type: Element, ttl: Duration | None = None, ttl_clock: Clock = "processing"
    ) -> None:
        self.key = _element(key, "Map: key")
        if not (isinstance(self.key, pa.DataType) and _is_exact(self.key)):
            raise TopologyError(
                f"Map: key is {key!r}; a map's keys are integers, booleans, text, bytes, dates, times, timestamps or "
                "durations."
            )
        super().__init__(type, ttl, ttl_clock)

    def _types(self) -> tuple[Element, ...]:
        return self.key, self.type


Declared: TypeAlias = StateKind | Element


def check_store(value: object, where: str) -> None:
    """Check where an operator keeps its state.

    Parameters
    ----------
    value : object
        The option `store=`.
    where : str
        The operator, for the error text.

    Raises
    ------
    TopologyError
        When it is neither None nor one of `STORES`.

    Examples
    --------
    >>> check_store("ssd", "compute 'planes'")
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.TopologyError: compute 'planes': store is 'ssd'; give one of 'memory', 'disk', 'auto'.
    """
    if value is not None and value not in STORES:
        raise TopologyError(f"{where}: store is {value!r}; give one of {', '.join(map(repr, STORES))}.")


def kind_of(declared: Declared) -> StateKind:
    """Convert a declaration to a `StateKind`: an Arrow type or `object` becomes a `Value`.

    Parameters
    ----------
    declared : StateKind, DataType or object
        The declaration.

    Returns
    -------
    StateKind
        The declaration itself, or a `Value` of its type.

    Examples
    --------
    >>> kind_of(pa.int64()), kind_of(List(object))
    (Value(int64), List(object))
    """
    return declared if isinstance(declared, StateKind) else Value(declared)


def _element(type_: object, where: str) -> Element:
    if type_ is object:
        return object
    if not isinstance(type_, pa.DataType):
        raise TopologyError(
            f"{where} is {type_!r}; give a pyarrow type such as pa.float64(), or object for any Python object."
        )
    return kept_type(type_, where)


def _is_exact(type_: pa.DataType) -> bool:
    types = pa.types
    text = types.is_string(type_) or types.is_large_string(type_)
    raw = types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_)
    moment = types.is_date(type_) or types.is_time(type_) or types.is_timestamp(type_) or types.is_duration(type_)
    return bool(text or raw or moment or types.is_integer(type_) or types.is_boolean(type_))
