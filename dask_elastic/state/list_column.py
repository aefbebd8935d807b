"""One named list of the keys in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dask_elastic.state.layout import unexpired_part
from dask_elastic.state.slots import Column
from dask_elastic.state.stored_values import Known, Values, dtype_of, to_arrow, to_python, to_stored
from dask_elastic.state.value_column import Load, require_mask
from dask_elastic.topology.aggregates.ragged import Ragged
from dask_elastic.topology.state_kind import Element, List
from dask_elastic.vocab.errors import StateError


class ListColumn:
    """A list per key of a batch, for vectorised logic; made by `StateView.list`.

    Parameters
    ----------
    name : str
        Its name, for messages.
    kind : List
        What it is.
    ordinals : ndarray of intp
        For each row of the batch the number of its key.
    count : int
        How many keys there are.
    now : float
        The batch's time, seconds since the epoch.
    load : callable
        Reads its fields.

    Notes
    -----
    What it was told to do is state once the logic has returned. Where there is a time to live, each element has its
    own: it ends so long after it was appended.
    """

    def __init__(
        self, name: str, kind: List, ordinals: npt.NDArray[np.intp], count: int, now: float, load: Load
    ) -> None:
        self.name = name
        self.kind = kind
        self._ordinals = ordinals
        self._count = count
        self._now = now
        self._load = load
        self._current: list[Ragged] | None = None
        self._changed = False

    def _parts(self) -> list[Ragged]:
        """Return the elements and, where there is a time to live, their ends."""
        if self._current is None:
            self._current = list(unexpired_part(self.kind, self._load(), self._now))
        return self._current

    def get(self) -> pa.ListArray:
        """Return the lists, one per key of `state.keys`; what is declared `object` is pickled."""
        lists = self._parts()[0]
        return pa.ListArray.from_arrays(
            pa.array(lists.offsets.astype(np.int32)), to_arrow(lists.values, self.kind.type)
        )

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """How many elements each key has."""
        return self._parts()[0].lengths

    def append(self, values: Any, where: Any = None) -> None:
        """Append each row's value to the list of its key.

        Parameters
        ----------
        values : array-like
            One element per row of the batch; no nulls where it is appended.
        where : array of bool, optional
            Which rows to append; all by default.

        Raises
        ------
        StateError
            If length or type do not fit, or a value is null.
        """
        stored, known = stored_elements(values, self.kind.type, self.name)
        if len(stored) != len(self._ordinals):
            raise StateError(
                f"state list {self.name!r}: {len(stored)} values came for {len(self._ordinals)} rows; give one per row"
            )
        ordinals = self._ordinals
        if where is not None:
            chosen = require_mask(where, len(ordinals), self.name, "row")
            stored, known, ordinals = stored[chosen], known[chosen], ordinals[chosen]
        require_known(known, f"state list {self.name!r}")
        self.append_at(stored, ordinals)

    def append_at(self, stored: Values, ordinals: npt.NDArray[np.intp]) -> None:
        """Append stored elements to the lists of the numbered keys, in order."""
        more = Ragged.grouped(stored, ordinals, self._count)
        self._change([part.joined(new) for part, new in zip(self._parts(), self._with_ends(more), strict=True)])

    def set(self, lists: Any, where: Any = None) -> None:
        """Replace lists.

        Parameters
        ----------
        lists : ListArray or sequence of sequences
            One list per key of `state.keys`; no nulls in them. A null for a list stands for an empty one.
        where : array of bool, optional
            Which keys to change; all by default.
        """
        new = ragged_of(lists, self.kind.type, self.name)
        if len(new) != self._count:
            raise StateError(
                f"state list {self.name!r}: {len(new)} lists came for {self._count} keys; give one per key of "
                "state.keys"
            )
        self.replace(self._with_ends(new), None if where is None else require_mask(where, self._count, self.name))

    def replace(self, parts: Sequence[Ragged], where: Known | None) -> None:
        """Replace stored lists, and their ends where there is a time to live, of all keys or some."""
        if where is None:
            self._change(list(parts))
        else:
            self._change([old.replaced(where, new) for old, new in zip(self._parts(), parts, strict=True)])

    def keep_newest(self, most: int) -> None:
        """Shorten each list to its last elements, at most so many."""
        if most < 0:
            raise StateError(f"state list {self.name!r}: keep_newest({most}) keeps less than nothing; give 0 or more")
        parts = self._parts()
        if len(parts[0].values) and int(parts[0].lengths.max()) > most:
            kept = parts[0].ranks_from_end() < most
            self._change([part.filtered(kept) for part in parts])

    def clear(self, where: Any = None) -> None:
        """Empty the lists of all keys, or of those where `where` is true."""
        mask = np.ones(self._count, np.bool_) if where is None else require_mask(where, self._count, self.name)
        self._change([part.filtered(~mask[part.owners]) for part in self._parts()])

    def python(self, position: int) -> tuple[list[Any], list[float]]:
        """Return one key's elements as Python's, and when each ends; no ends where there is no time to live."""
        lists, *ends = self._parts()
        start, stop = int(lists.offsets[position]), int(lists.offsets[position + 1])
        return to_python(lists.values[start:stop], self.kind.type), ends[0].values[start:stop].tolist() if ends else []

    def _with_ends(self, lists: Ragged) -> list[Ragged]:
        if self.kind.ttl is None:
            return [lists]
        return [lists, Ragged(np.full(len(lists.values), self._now + self.kind.ttl), lists.offsets)]

    def _change(self, parts: list[Ragged]) -> None:
        self._current = parts
        self._changed = True

    def changes(self) -> Sequence[Column] | None:
        """Return the fields to write, None if nothing has changed since it was last asked."""
        changed, self._changed = self._changed, False
        return self._current if changed else None


def stored_elements(values: Any, kind: Element, name: str) -> tuple[Values, Known]:
    """Return elements as they are stored and which are not null, or say why they do not fit."""
    try:
        return to_stored(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StateError(f"the state value {name!r} is declared as {kind}: {error}") from error


def require_known(known: Known, what: str) -> None:
    """Refuse nulls."""
    if not known.all():
        raise StateError(
            f"{what}: row {int(np.argmin(known))} is null, and lists and maps keep no nulls; leave such rows out with "
            "where="
        )


def ragged_of(lists: Any, kind: Element, name: str) -> Ragged:
    """Return lists as they are stored."""
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.combine_chunks()
    if isinstance(lists, pa.Array):
        if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
            raise StateError(f"state list {name!r}: values of type {lists.type} came; give one list per key")
        lengths = np.nan_to_num(lists.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
        elements: Any = lists.flatten()
    else:
        listed = [[] if values is None else list(values) for values in lists]
        lengths = np.array([len(values) for values in listed], np.int64)
        elements = [value for values in listed for value in values]
    stored, known = stored_elements(elements, kind, name)
    require_known(known, f"state list {name!r}")
    return Ragged.of_lengths(stored.astype(dtype_of(kind), copy=False), lengths)
