"""User-defined aggregates, in Python per key."""

from __future__ import annotations

import copy
import datetime
import decimal
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError
from dask_elastic.vocab.listed_arrays import listed_array

_IMMUTABLE = (
    *(type(None), bool, int, float, complex, str, bytes, frozenset, decimal.Decimal, np.generic),
    *(datetime.date, datetime.time, datetime.timedelta, pa.Scalar, pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table),
)


def private_copy(value: Any) -> Any:
    """Return a copy that can be modified in place without affecting the original.

    Parameters
    ----------
    value : object
        Any value.

    Returns
    -------
    object
        A deep copy, or the value itself if it is immutable.

    Examples
    --------
    >>> kept = {"seen": [1]}
    >>> private_copy(kept)["seen"].append(2)
    >>> kept
    {'seen': [1]}
    """
    return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)


class UserAggregate(Aggregate):
    """A user-defined aggregate: subclass it and implement `init`, `add`, `merge` and `result`.

    Parameters
    ----------
    columns : sequence of str
        The input columns that `add` reads.
    type : DataType, optional
        The Arrow type of the result; may be a class attribute `type` instead.

    Raises
    ------
    TopologyError
        If an argument is invalid.

    Notes
    -----
    Python runs once per key and batch and holds the GIL, so that user-defined aggregates are far slower than built-in
    ones. `add` and `merge` may modify the accumulator in place: they get a copy, which is discarded if they raise. So
    keep accumulators small; immutable values, such as Arrow arrays, are not copied.

    Examples
    --------
    >>> class Longest(UserAggregate):
    ...     type = pa.string()
    ...     def init(self):
    ...         return ""
    ...     def add(self, acc, values):
    ...         return max([acc, *values["word"].to_pylist()], key=len)
    ...     def merge(self, a, b):
    ...         return max(a, b, key=len)
    ...     def result(self, acc):
    ...         return acc
    >>> Longest(["word"])
    Longest(columns=['word'])
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "word": ["ok", "late", "delayed"]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"word": Longest(["word"])}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'word': ['delayed', 'late']}
    """

    type: pa.DataType | None = None

    def __init__(self, columns: Sequence[str], type: pa.DataType | None = None) -> None:
        if isinstance(columns, str):
            raise TopologyError(f"{_class(self)}: columns is a list of names; write [{columns!r}]")
        self._columns = tuple(columns)
        if type is not None:
            self.type = type
        if not isinstance(self.type, pa.DataType):
            raise TopologyError(
                f"{_class(self)}: type is {self.type!r}; give the Arrow type of the result as type=, or as an attribute"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads."""
        return self._columns

    @abstractmethod
    def init(self) -> Any:
        """Return the accumulator of a key without rows.

        Returns
        -------
        object
            A new accumulator; any Python value that can be pickled.
        """

    @abstractmethod
    def add(self, acc: Any, values: pa.RecordBatch) -> Any:
        """Return the accumulator after more rows of its key.

        Parameters
        ----------
        acc : object
            The accumulator; may be modified in place.
        values : RecordBatch
            The columns `columns` of the rows, in order.

        Returns
        -------
        object
            The new accumulator.
        """

    @abstractmethod
    def merge(self, a: Any, b: Any) -> Any:
        """Return the accumulator of a key whose rows were aggregated in two parts.

        Parameters
        ----------
        a, b : object
            The accumulators of the earlier and of the later rows; may be modified in place.

        Returns
        -------
        object
            The merged accumulator.
        """

    @abstractmethod
    def result(self, acc: Any) -> Any:
        """Return the result of an accumulator.

        Parameters
        ----------
        acc : object
            The accumulator; must not be modified.

        Returns
        -------
        object
            A value of the type `type`, or None.
        """

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        for column in self.columns:
            if column not in schema.names:
                raise SchemaMismatch(
                    f"{self!r} reads column {column!r}, which its input lacks; "
                    f"the columns are {', '.join(map(repr, schema.names))}"
                )
        return _BoundUserAggregate(self)

    def __repr__(self) -> str:
        return f"{_class(self)}(columns={list(self.columns)!r})"


def custom(
    columns: Sequence[str],
    init: Callable[[], Any],
    add: Callable[[Any, pa.RecordBatch], Any],
    merge: Callable[[Any, Any], Any],
    result: Callable[[Any], Any],
    type: pa.DataType,
) -> UserAggregate:
    """Define an aggregate by functions instead of a subclass of `UserAggregate`.

    Parameters
    ----------
    columns : sequence of str
        The input columns that `add` reads.
    init, add, merge, result : callable
        See the methods of `UserAggregate`.
    type : DataType
        The Arrow type of the result.

    Returns
    -------
    UserAggregate
        The aggregate.

    Raises
    ------
    TopologyError
        If an argument is invalid.

    Examples
    --------
    >>> custom(["n"], list, lambda acc, rows: acc + rows["n"].to_pylist(), list.__add__, sorted, pa.list_(pa.int64()))
    custom(columns=['n'], result=sorted)
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> def add(acc, rows):
    ...     return acc + rows["delay"].to_pylist()
    >>> delays = custom(["delay"], list, add, list.__add__, sorted, pa.list_(pa.int64()))
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "delay": [5, 7, 3]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"delays": delays}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'delays': [[3, 5], [7]]}
    """
    return _Custom(columns, init, add, merge, result, type)


class _Custom(UserAggregate):
    def __init__(
        self,
        columns: Sequence[str],
        init: Callable[[], Any],
        add: Callable[[Any, pa.RecordBatch], Any],
        merge: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
        type: pa.DataType,
    ) -> None:
        super().__init__(columns, type)
        for word, function in {"init": init, "add": add, "merge": merge, "result": result}.items():
            if not callable(function):
                raise TopologyError(f"custom: {word} must be a function, not {function!r}")
        self._init = init
        self._add = add
        self._merge = merge
        self._result = result

    def init(self) -> Any:
        return self._init()

    def add(self, acc: Any, values: pa.RecordBatch) -> Any:
        return self._add(acc, values)

    def merge(self, a: Any, b: Any) -> Any:
        return self._merge(a, b)

    def result(self, acc: Any) -> Any:
        return self._result(acc)

    def __repr__(self) -> str:
        name = getattr(self._result, "__name__", repr(self._result))
        return f"custom(columns={list(self.columns)!r}, result={name})"


class _BoundUserAggregate(BoundAggregate):
    reads_chosen = True
    fields = (Field("accumulator", np.dtype(object), None), Field("present", np.dtype(np.bool_), False))

    def __init__(self, aggregate: UserAggregate) -> None:
        self.type = aggregate.type
        self._aggregate = aggregate
        self._columns = list(aggregate.columns)

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        accumulators, present = current
        aggregate = self._aggregate
        ordered = rows.select(self._columns).take(array_of(grouping.order))
        after = np.empty(grouping.count, dtype=object)
        starts, sizes = grouping.starts.tolist(), grouping.sizes.tolist()
        for group, known in enumerate(present.tolist()):
            before = private_copy(accumulators[group]) if known else aggregate.init()
            after[group] = aggregate.add(before, ordered.slice(starts[group], sizes[group]))
        return [after, np.ones(grouping.count, dtype=np.bool_)]

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        merged = np.empty(len(left[0]), dtype=object)
        for key, (a, in_a, b, in_b) in enumerate(zip(left[0], left[1], right[0], right[1], strict=True)):
            if in_a and in_b:
                merged[key] = self._aggregate.merge(private_copy(a), private_copy(b))
            else:
                merged[key] = a if in_a else b
        return [merged, left[1] | right[1]]

    def result(self, current: Sequence[Values]) -> pa.Array:
        accumulators, present = current
        values = [
            self._aggregate.result(acc) if known else None
            for acc, known in zip(_listed(accumulators), present.tolist(), strict=True)
        ]
        try:
            return listed_array(values, self.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatch(
                f"{self._aggregate!r}: a result is not of the type {self.type}: {error}. Fix result or type="
            ) from error


def _listed(values: npt.NDArray[Any]) -> list[Any]:
    return list(values)


def _class(aggregate: UserAggregate) -> str:
    return type(aggregate).__name__.lstrip("_").replace("Custom", "custom")
