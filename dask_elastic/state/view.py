"""Keyed state as users' batch logic sees it: named values of the keys in one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.session import Located, Session
from dask_elastic.topology.field import Field
from dask_elastic.topology.operand import storage, stored, validity
from dask_elastic.topology.user_aggregate import private_copy
from dask_elastic.vocab.errors import StateError

Values = npt.NDArray[Any]
Known = npt.NDArray[np.bool_]
Kind: TypeAlias = pa.DataType | type[object]
Declared = Mapping[str, Kind]

_UNSET = object()


class StateView:
    """The state of the keys in one batch, one array element per distinct key.

    Parameters
    ----------
    session : Session
        The task's session.
    located : Located
        The batch's keys.
    rows : RecordBatch
        The batch.
    key_columns : sequence of str
        Its key columns.
    declared : mapping of str to DataType or object
        The values' names and types, as the operator declares them: an Arrow type, or `object` for any Python value.

    Notes
    -----
    What is set becomes state at `commit`, which the engine calls when the logic has returned.

    Examples
    --------
    A difference to the value before, per key:

    >>> def change(batch, state):
    ...     last = batch["price"].to_numpy()[state.first]
    ...     before = state.get("last", default=np.nan)
    ...     state.set("last", last)
    ...     return state.keys.append_column("change", pa.array(last - before))
    """

    def __init__(
        self, session: Session, located: Located, rows: pa.RecordBatch, key_columns: Sequence[str], declared: Declared
    ) -> None:
        self._session = session
        self._located = located
        self._rows = rows
        self._key_columns = list(key_columns)
        self._declared = dict(declared)
        self._read: dict[str, tuple[Values, Known]] = {}
        self._written: dict[str, tuple[Values, Known]] = {}

    @property
    def keys(self) -> pa.RecordBatch:
        """The distinct keys of the batch; every array of state is in their order."""
        return self._rows.select(self._key_columns).take(pa.array(self.first))

    @property
    def first(self) -> npt.NDArray[np.intp]:
        """A row of each key."""
        return self._located.first

    @property
    def ordinals(self) -> npt.NDArray[np.intp]:
        """For each row the number of its key within `keys`; `values[state.ordinals]` spreads values over the rows."""
        return self._located.grouping.ordinals

    def __len__(self) -> int:
        return len(self._located)

    def get(self, name: str, default: object = _UNSET) -> Values:
        """Return a value of every key.

        Parameters
        ----------
        name : str
            The value's declared name.
        default : object, optional
            What keys have that have no value yet; without it zero, False, NaT or None.

        Returns
        -------
        ndarray
            One element per key, the caller's own; timestamps, dates and durations as NumPy's, other types than numbers
            and booleans as Python objects.
        """
        values, known = self._of(name)
        values = _private(values) if values.dtype == object else values.copy()
        if default is not _UNSET:
            try:
                values = _filled(values, ~known, default)
            except (TypeError, ValueError, OverflowError) as error:
                raise StateError(
                    f"the default {default!r} does not fit the state value {name!r}, {self._declared[name]}: {error}"
                ) from error
        return values

    def known(self, name: str) -> Known:
        """Return which keys have a value."""
        return self._of(name)[1].copy()

    def set(self, name: str, values: Any, where: Known | None = None) -> None:
        """Give every key, or those chosen, a value.

        Parameters
        ----------
        name : str
            The value's declared name.
        values : array-like
            One element per key. A null takes the key's value away.
        where : ndarray of bool, optional
            Which keys to change; all by default.

        Raises
        ------
        StateError
            If the name is not declared, or length or type do not fit.
        """
        kind = self._kind(name)
        new, known = self._converted(name, kind, values)
        if where is not None:
            where = np.asarray(where)
            if where.shape != (len(self),) or where.dtype != np.bool_:
                raise StateError(f"state value {name!r}: where must be {len(self)} booleans, one per key of state.keys")
            before, was_known = self._of(name)
            new, known = np.where(where, new, before), np.where(where, known, was_known)
        self._written[name] = new, known

    def commit(self) -> None:
        """Write what was set to the store."""
        if not self._written:
            return
        arrays: list[Values | None] = []
        for name in self._declared:
            arrays += self._written.get(name, (None, None))
        self._session.scatter(self._located, arrays)
        self._read |= self._written
        self._written = {}

    def _kind(self, name: str) -> Kind:
        if name not in self._declared:
            names = ", ".join(map(repr, self._declared)) or "none"
            raise StateError(f"the state value {name!r} is not declared in state={{...}}; declared are: {names}")
        return self._declared[name]

    def _of(self, name: str) -> tuple[Values, Known]:
        self._kind(name)
        if name in self._written:
            return self._written[name]
        if name not in self._read:
            place = 2 * list(self._declared).index(name)
            values, known = self._session.gather(self._located, [place, place + 1])
            self._read[name] = values, known
        return self._read[name]

    def _converted(self, name: str, kind: Kind, values: Any) -> tuple[Values, Known]:
        try:
            new, known = _objects(values) if kind is object else _checked(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StateError(f"the state value {name!r} is declared as {kind}: {error}") from error
        if new.shape != (len(self),):
            raise StateError(
                f"state value {name!r}: {len(new)} values came for {len(self)} keys; give one per key of state.keys"
            )
        return new, known


def value_fields(declared: Declared) -> tuple[Field, ...]:
    """Return the fields that hold declared values: for each the value, and whether the key has one.

    Examples
    --------
    >>> value_fields({"last": pa.float64()})
    (Field('last', float64, initial=0.0), Field('last?', bool, initial=False))
    """
    fields: list[Field] = []
    for name, kind in declared.items():
        dtype = _dtype(kind)
        initial = None if dtype.hasobject else "NaT" if dtype.kind in "Mm" else 0
        fields += [Field(name, dtype, initial), Field(f"{name}?", np.dtype(np.bool_), False)]
    return tuple(fields)


def value_result(declared: Declared, fields: Sequence[Values]) -> list[pa.Array]:
    """Return declared values as Arrow arrays, null where a key has none; those declared as `object` are pickled.

    Examples
    --------
    >>> value_result({"name": pa.string()}, [np.array(["a", None]), np.array([True, False])])[0].to_pylist()
    ['a', None]
    """
    results = []
    for place, kind in enumerate(declared.values()):
        values, known = fields[2 * place], fields[2 * place + 1]
        if kind is object:
            pickled = [cloudpickle.dumps(value) if has else None for value, has in zip(values, known, strict=True)]
            results.append(pa.array(pickled, pa.large_binary()))
        else:
            listed = list(values) if values.dtype == object else values
            results.append(pa.array(listed, kind, mask=~known))
    return results


def _dtype(kind: Kind) -> np.dtype[Any]:
    types = pa.types
    if not isinstance(kind, pa.DataType):
        return np.dtype(object)
    if types.is_timestamp(kind):
        return np.dtype(f"M8[{kind.unit}]")
    if types.is_duration(kind):
        return np.dtype(f"m8[{kind.unit}]")
    if types.is_date(kind):
        return np.dtype("M8[D]" if types.is_date32(kind) else "M8[ms]")
    plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return (storage(kind) if plain else None) or np.dtype(object)


def _checked(values: Any, kind: pa.DataType) -> tuple[Values, Known]:
    """Return values as they are stored and which are not null; Arrow refuses what does not fit the type."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_integer(kind) and isinstance(values, list | tuple):
        # Arrow would cut the fraction off a list's floats without a word, but not off an array's.
        values = pa.array(values)
    array = values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, type=kind)
    valid = validity(array)
    known = np.ones(len(array), np.bool_) if valid is None else valid
    dtype = _dtype(kind)
    if dtype.hasobject:
        return _objects(array.to_pylist())[0], known
    numbers = stored(array)
    if dtype.kind in "Mm":
        numbers = numbers.astype(np.int64, copy=False).view(dtype)
    if valid is not None:
        numbers = np.where(valid, numbers, np.zeros(1, dtype) if dtype.kind not in "Mm" else np.array("NaT", dtype))
    return numbers, known


def _objects(values: Any) -> tuple[Values, Known]:
    listed = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)
    # Filled one by one, since NumPy would take equally long lists for a matrix.
    objects = np.empty(len(listed), dtype=object)
    for place, value in enumerate(listed):
        objects[place] = value
    return objects, np.ones(len(listed), np.bool_)


def _private(values: Values) -> Values:
    return _objects([private_copy(value) for value in values])[0]


def _filled(values: Values, missing: Known, default: object) -> Values:
    if values.dtype == object:
        for place in np.flatnonzero(missing):
            values[place] = private_copy(default)
    elif missing.any():
        if values.dtype.kind in "iub" and isinstance(default, float) and not default.is_integer():
            values = values.astype(np.float64)
        values[missing] = default
    return values
