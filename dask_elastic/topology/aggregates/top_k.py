"""The exact top k values per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.topology.aggregates.aggregation import Aggregate, BoundAggregate, Values
from dask_elastic.topology.aggregates.field import Field
from dask_elastic.topology.aggregates.grouping import Grouping
from dask_elastic.topology.aggregates.operand import (
    BatchFunction,
    BoundOperand,
    Operand,
    restored,
    storage,
    stored,
    validity,
)
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.vocab.errors import TopologyError

Ordinals = npt.NDArray[np.intp]
Found = npt.NDArray[Any]


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
    on the order of rows nor on how they are divided into batches. Supports the same types as `Max`; labels may also be
    text and bytes.

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

    def bind(self, schema: pa.Schema) -> BoundAggregate:
        """Bind the aggregate to the schema of its input; see `Aggregate.bind`."""
        operand = self._operand.bind(schema, repr(self))
        if storage(operand.type) is None:
            raise TopologyError(
                f"{self!r}: values of type {operand.type} are not supported; use numbers, booleans, dates, times, "
                "timestamps, durations or decimals of at most 18 digits"
            )
        name = self._operand.of if isinstance(self._operand.of, str) else "value"
        if self._label is None:
            return _BoundTopK(operand, self._k)
        label = self._label.bind(schema, repr(self))
        if not (storage(label.type) is not None or _is_text(label.type)):
            raise TopologyError(
                f"{self!r}: labels of type {label.type} are not supported; use numbers, booleans, times, text or bytes"
            )
        label_name = str(self._label.of)
        return _BoundLabelledTopK(operand, label, self._k, (name, label_name))

    def __repr__(self) -> str:
        label = "" if self._label is None else f", label={self._label!r}"
        is_column = isinstance(self._operand.of, str)
        text = f"{self._operand!r}, {self._k}" if is_column else f"{self._operand!r}, k={self._k}"
        return f"TopK({text}{label})"


class _BoundTopK(BoundAggregate):
    def __init__(self, operand: BoundOperand, k: int) -> None:
        dtype = storage(operand.type)
        assert dtype is not None, "refused when bound"
        self.fields: tuple[Field, ...] = (Field("values", dtype, 0, ragged=True),)
        self.type = pa.list_(operand.type)
        self._operand = operand
        self._k = k

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        values, chosen = _comparable(self._operand, rows)
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
        return _list_array(lists, restored(lists.values, self.type.value_type, None))

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
        return _greatest(np.lexsort((parts[0], owners)), owners, count, self._k)


class _BoundLabelledTopK(_BoundTopK):
    def __init__(self, operand: BoundOperand, label: BoundOperand, k: int, names: tuple[str, str]) -> None:
        super().__init__(operand, k)
        dtype = storage(label.type) or np.dtype(object)
        self.fields = (*self.fields, Field("labels", dtype, None if dtype.hasobject else 0, ragged=True))
        self.type = pa.list_(pa.struct(dict(zip(names, (operand.type, label.type), strict=True))))
        self._label = label
        self._names = names

    def update(self, current: Sequence[Values], rows: pa.RecordBatch, grouping: Grouping) -> list[Values]:
        values, chosen = _comparable(self._operand, rows)
        labels = self._label.array(rows)
        numbers = np.arange(rows.num_rows) if chosen is None else np.flatnonzero(chosen)
        named = validity(labels)
        if named is not None:
            values, numbers = values[named[numbers]], numbers[named[numbers]]
        ordinals = grouping.ordinals[numbers]
        higher = _may_enter(values, ordinals, current[0], self._k, ties=True)
        if not higher.any():
            return list(current)
        return self._merged(current, [values[higher], self._stored(labels, numbers[higher])], ordinals[higher])

    def _stored(self, labels: pa.Array, rows: Ordinals) -> Found:
        taken = labels.take(pa.array(rows))
        return _objects(taken) if self.fields[1].is_object else stored(taken)

    def _best(self, parts: Sequence[Found], owners: Ordinals, count: int) -> tuple[Ordinals, npt.NDArray[np.int64]]:
        values, labels = parts
        # Comparing labels is the most expensive part: only for values not below the k-th one of their group.
        order = np.lexsort((values, owners))
        first, _ = _greatest(order, owners, count, self._k)
        least = np.zeros(count, values.dtype)
        least[owners[first]] = values[first]
        kept = np.flatnonzero(values >= least[owners])
        _, codes = np.unique(labels[kept], return_inverse=True)
        order = kept[np.lexsort((-codes, values[kept], owners[kept]))]
        return _greatest(order, owners, count, self._k)

    def result(self, current: Sequence[Values]) -> pa.Array:
        values, labels = current
        value_type, label_type = (field.type for field in self.type.value_type)
        is_object = self.fields[1].is_object
        named = pa.array(labels.values, label_type) if is_object else restored(labels.values, label_type, None)
        ranked = restored(values.values, value_type, None)
        structs = pa.StructArray.from_arrays([ranked, named], fields=list(self.type.value_type))
        return _list_array(values, structs)


def _comparable(operand: BoundOperand, rows: pa.RecordBatch) -> tuple[Found, npt.NDArray[np.bool_] | None]:
    """Return the values that are neither null nor NaN, and a mask of their rows (None if all rows have one)."""
    values, chosen = operand.read(rows)
    if values.dtype.kind == "f":
        unordered = np.isnan(values)
        if unordered.any():
            chosen = ~unordered if chosen is None else chosen & ~unordered
    return (values, None) if chosen is None else (values[chosen], chosen)


def _may_enter(values: Found, ordinals: Ordinals, lists: Ragged, k: int, ties: bool) -> npt.NDArray[np.bool_]:
    """Return which values may enter their group's list: not full, or its last value is less (or equal, if `ties`)."""
    full = lists.lengths == k
    if not full.any():
        return np.ones(len(values), np.bool_)
    last = np.zeros(len(lists), values.dtype)
    last[full] = lists.values[lists.offsets[1:][full] - 1]
    over = values >= last[ordinals] if ties else values > last[ordinals]
    entering: npt.NDArray[np.bool_] = over | ~full[ordinals]
    return entering


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
    return pa.ListArray.from_arrays(pa.array(lists.offsets.astype(np.int32)), elements)


def _objects(labels: pa.Array) -> Found:
    objects = np.empty(len(labels), dtype=object)
    objects[:] = labels.to_pylist()
    return objects


def _is_text(type_: pa.DataType) -> bool:
    types = pa.types
    text = types.is_string(type_) or types.is_large_string(type_)
    return bool(text or types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_))
