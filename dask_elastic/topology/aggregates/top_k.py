"""The exact top k values per key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.operand import BatchFunction, BoundOperand, Operand, in_units, validity
from dask_elastic.topology.aggregates.ordered_values import (
    SUPPORTED,
    Found,
    as_arrow,
    kept,
    order_storage,
    prefixes,
    ranked,
    ranks_of,
)
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.vocab.arrow_arrays import array_of
from dask_elastic.vocab.errors import TopologyError

Ordinals = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


class TopK(Aggregate):
    """The k greatest values of a column, or of a vectorised function of a batch, optionally with labels.

    Parameters
    ----------
    of : str or callable
        A column, or a function from a batch to an array with one value per row.
    k : int
        The number of values to keep, 1 or more.
    label : str, optional
        A column that labels the values, such as the plane of a delay.
    columns : sequence of str, optional
        The columns that the function reads; required if `of` is a function.

    Raises
    ------
    TopologyError
        If an argument is invalid.

    Notes
    -----
    The result is exact: a list in descending order of values or, with a label, of structs of value and label. Duplicate
    values are kept. The list is shorter if a key has fewer than k values. Nulls, NaN, and rows whose label is null are
    ignored. Among equal values, those with the least labels are kept and come first, so that the result depends neither
    on the order of rows nor on how they are divided into batches. Values and labels are of the types that `Max`
    supports.

    Examples
    --------
    >>> TopK("delay", 3), TopK("delay", 3, label="plane")
    (TopK('delay', 3), TopK('delay', 3, label='plane'))
    >>> import dask_elastic as de
    >>> from dask_elastic.testing import run
    >>> flights = de.sources.Arrow(pa.table({"plane": ["a", "b", "a"], "delay": [3, 7, 5]}))
    >>> topology = de.Topology("delays")
    >>> stream = topology.source("flights", flights).key_by("plane")
    >>> _ = stream.compute({"worst": TopK("delay", 2)}, name="planes")
    >>> run(topology).state["planes"].sort_by("plane").to_pydict()
    {'plane': ['a', 'b'], 'worst': [[5, 3], [7]]}
    """

    def __init__(
        self, of: str | BatchFunction, k: int, label: str | None = None, columns: Sequence[str] | None = None
    ) -> None:
        self._operand = Operand(of, columns)
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise TopologyError(f"TopK({self._operand!r}): k is {k!r}; give an integer, 1 or more")
        if label is not None and (not isinstance(label, str) or label == of):
            raise TopologyError(f"TopK({self._operand!r}, {k}): label is {label!r}; give the name of another column")
        self._k = k
        self._label = None if label is None else Operand(label)

    @property
    def columns(self) -> tuple[str, ...]:
        """The input columns that it reads."""
        label = () if self._label is None else self._label.columns
        return tuple(dict.fromkeys((*self._operand.columns, *label)))

    @property
    def calls_functions(self) -> bool:
        """Whether its values are those of a function."""
        return self._operand.is_function

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        operand = self._operand.bind(schema, repr(self))
        if order_storage(operand.type) is None:
            raise TopologyError(f"{self!r}: values of type {operand.type} are not supported; use {SUPPORTED}")
        name = self._operand.of if isinstance(self._operand.of, str) else "value"
        if self._label is None:
            return _BoundTopK(operand, self._k)
        label = self._label.bind(schema, repr(self))
        if order_storage(label.type) is None:
            raise TopologyError(f"{self!r}: labels of type {label.type} are not supported; use {SUPPORTED}")
        label_name = str(self._label.of)
        return _BoundLabelledTopK(operand, label, self._k, (name, label_name))

    def __repr__(self) -> str:
        label = "" if self._label is None else f", label={self._label!r}"
        is_column = isinstance(self._operand.of, str)
        text = f"{self._operand!r}, {self._k}" if is_column else f"{self._operand!r}, k={self._k}"
        return f"TopK({text}{label})"


class _BoundTopK(BoundAggregate):
    reads_chosen = True

    def __init__(self, operand: BoundOperand, k: int) -> None:
        self.fields: tuple[Field, ...] = (_field("values", operand.type),)
        self.type = pa.list_(operand.type)
        self._operand = operand
        self._value_type = operand.type
        self._k = k

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        values, chosen = self._candidates(rows, grouping, current[0], None)
        ordinals = grouping.ordinals if chosen is None else grouping.ordinals[chosen]
        (lists,) = current
        higher = _may_enter(values, ordinals, lists, self._k, ties=False)
        if not higher.any():
            return [lists]
        return self._merged(current, [values[higher]], ordinals[higher])

    def merge(self, left: Sequence[Values], right: Sequence[Values]) -> list[Values]:
        return self._merged(left, [part.values for part in right], right[0].owners)

    def result(self, current: Sequence[Values]) -> pa.Array:
        (lists,) = current
        return _list_array(lists, as_arrow(lists.values, self._value_type))

    def _candidates(
        self, rows: pa.RecordBatch, grouping: Grouping, lists: Ragged, labels: pa.Array | None
    ) -> tuple[Found, Ordinals | None]:
        """Return the values that may be in the result, and their row numbers (None if every row has one)."""
        named = None if labels is None else validity(labels)
        if not self.fields[0].is_object:
            return _comparable(self._operand, rows, named)
        array = self._operand.array(rows)
        chosen = _both(validity(array), named)
        if chosen is not None:
            array = array.filter(array_of(chosen))
        numbers = np.arange(len(array)) if chosen is None else np.flatnonzero(chosen)
        owners = grouping.ordinals[numbers]
        entering = self._start_high(array, owners, lists)
        numbers, owners = numbers[entering], owners[entering]
        ranks, distinct = ranked(array.filter(array_of(entering)))
        # Python objects are expensive: make them only of the greatest values of each group.
        best, _ = _greatest(np.lexsort((ranks, owners)), owners, grouping.count, self._k)
        if labels is not None:
            best = _reaching(ranks, owners, best, grouping.count)
        return kept(distinct.take(array_of(ranks[best]))), numbers[best]

    def _start_high(self, array: pa.Array, owners: Ordinals, lists: Ragged) -> Mask:
        """Return which values start so that they may enter their group's list."""
        found = prefixes(array)
        full = np.flatnonzero(lists.lengths == self._k)
        if found is None or not len(full):
            return np.ones(len(array), np.bool_)
        last = prefixes(as_arrow(lists.values[lists.offsets[full + 1] - 1], self._value_type))
        assert last is not None, "of the same type"
        least = np.zeros(len(lists), np.uint64)
        least[full] = last
        return found >= least[owners]

    def _merged(self, current: Sequence[Ragged], more: Sequence[Found], ordinals: Ordinals) -> list[Values]:
        """Return the lists after adding values to the groups of their ordinals; other groups are left unchanged."""
        changed = np.zeros(len(current[0]), np.bool_)
        changed[ordinals] = True
        groups = np.flatnonzero(changed)
        before = [part.take(groups) for part in current]
        number = np.cumsum(changed) - 1
        owners = np.concatenate([before[0].owners, number[ordinals]])
        parts = [np.concatenate([part.values, new]) for part, new in zip(before, more, strict=True)]
        chosen, lengths = self._best(parts, owners, len(groups))
        after = [Ragged.of_lengths(part[chosen], lengths) for part in parts]
        return [old.placed(groups, new) for old, new in zip(current, after, strict=True)]

    def _best(self, parts: Sequence[Found], owners: Ordinals, count: int) -> tuple[Ordinals, npt.NDArray[np.int64]]:
        return _greatest(np.lexsort((self._sortable(parts[0]), owners)), owners, count, self._k)

    def _sortable(self, values: Found) -> Found:
        return ranks_of(values, self._value_type) if self.fields[0].is_object else values


class _BoundLabelledTopK(_BoundTopK):
    def __init__(self, operand: BoundOperand, label: BoundOperand, k: int, names: tuple[str, str]) -> None:
        super().__init__(operand, k)
        self.fields = (*self.fields, _field("labels", label.type))
        self.type = pa.list_(pa.struct(dict(zip(names, (operand.type, label.type), strict=True))))
        self._label = label
        self._names = names

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        labels = self._label.array(rows)
        values, chosen = self._candidates(rows, grouping, current[0], labels)
        ordinals = grouping.ordinals if chosen is None else grouping.ordinals[chosen]
        higher = np.flatnonzero(_may_enter(values, ordinals, current[0], self._k, ties=True))
        if not len(higher):
            return list(current)
        numbers = higher if chosen is None else chosen[higher]
        return self._merged(current, [values[higher], kept(labels.take(array_of(numbers)))], ordinals[higher])

    def _best(self, parts: Sequence[Found], owners: Ordinals, count: int) -> tuple[Ordinals, npt.NDArray[np.int64]]:
        values, labels = self._sortable(parts[0]), parts[1]
        # Comparing labels is the most expensive part: only for values not below the k-th one of their group.
        first, _ = _greatest(np.lexsort((values, owners)), owners, count, self._k)
        found = _reaching(values, owners, first, count)
        codes = ranks_of(labels[found], self._label.type)
        order = found[np.lexsort((-codes, values[found], owners[found]))]
        return _greatest(order, owners, count, self._k)

    def result(self, current: Sequence[Values]) -> pa.Array:
        values, labels = current
        parts = [as_arrow(values.values, self._value_type), as_arrow(labels.values, self._label.type)]
        return _list_array(values, pa.StructArray.from_arrays(parts, fields=list(self.type.value_type)))


def _field(name: str, type_: pa.DataType) -> Field:
    dtype = order_storage(type_)
    assert dtype is not None, "refused when bound"
    return Field(name if dtype.hasobject else in_units(name, type_), dtype, None if dtype.hasobject else 0, ragged=True)


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _comparable(operand: BoundOperand, rows: pa.RecordBatch, named: Mask | None) -> tuple[Found, Ordinals | None]:
    """Return the named numbers that are neither null nor NaN, and their row numbers (None if all rows have one)."""
    values, chosen = operand.read(rows)
    chosen = _both(chosen, named)
    if values.dtype.kind == "f":
        unordered = np.isnan(values)
        if unordered.any():
            chosen = _both(chosen, ~unordered)
    return (values, None) if chosen is None else (values[chosen], np.flatnonzero(chosen))


def _may_enter(values: Found, ordinals: Ordinals, lists: Ragged, k: int, ties: bool) -> Mask:
    """Return which values may enter their group's list: not full, or its last value is less (or equal, if `ties`)."""
    full = lists.lengths == k
    if not full.any():
        return np.ones(len(values), np.bool_)
    last = np.zeros(len(lists), values.dtype)
    last[full] = lists.values[lists.offsets[1:][full] - 1]
    entering: Mask = ~full[ordinals]
    over = np.greater_equal if ties else np.greater
    if values.dtype == object:
        # Groups whose list is not full have no last value to compare with.
        compared = ~entering
        entering[compared] = over(values[compared], last[ordinals[compared]])
        return entering
    return entering | over(values, last[ordinals])


def _reaching(values: Found, owners: Ordinals, best: Ordinals, count: int) -> Ordinals:
    """Return the rows that are not below the last of the `best` of their owner."""
    least = np.zeros(count, values.dtype)
    least[owners[best]] = values[best]
    return np.flatnonzero(values >= least[owners])


def _greatest(order: Ordinals, owners: Ordinals, count: int, k: int) -> tuple[Ordinals, npt.NDArray[np.int64]]:
    """Return the last k entries of each owner, last first, from an ascending order; and their number per owner."""
    sizes = np.bincount(owners[order], minlength=count)
    from_end = np.repeat(np.cumsum(sizes), sizes) - 1 - np.arange(len(order))
    lengths = np.minimum(sizes, k)
    kept = from_end < k
    chosen = np.empty(int(lengths.sum()), np.intp)
    starts = np.cumsum(lengths) - lengths
    chosen[starts[owners[order[kept]]] + from_end[kept]] = order[kept]
    return chosen, lengths


def _list_array(lists: Ragged, elements: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(array_of(lists.offsets.astype(np.int32)), elements)
