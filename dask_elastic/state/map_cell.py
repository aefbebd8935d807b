"""One key's map, for logic per row and per key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

from dask_elastic.state.changes.fitting import Fit
from dask_elastic.state.changes.undo_log import UndoLog
from dask_elastic.state.map_column import MapColumn
from dask_elastic.topology.aggregates.user_aggregate import private_copy
from dask_elastic.vocab.errors import StateValueError

_ABSENT = object()


class MapCell(MutableMapping[Any, Any]):
    """One key's map, used as a dict.

    Examples
    --------
    >>> def count_words(row, state):
    ...     counts = state["counts"]
    ...     counts[row["word"]] = counts.get(row["word"], 0) + 1
    """

    def __init__(self, column: MapColumn, position: int, fits: tuple[Fit, Fit], log: UndoLog | None = None) -> None:
        self._column = column
        self._fit_key, self._fit_value = fits
        self._log = log
        self._copied_in = -1
        self.entries, self.expiries = column.python(position)
        self.changed = False

    def __getitem__(self, key: Any) -> Any:
        key = self._stored(key)
        value = self.entries[key]
        if not self._sees(key):
            raise KeyError(key)
        return private_copy(value)

    def _stored(self, key: Any) -> Any:
        """Return a key as entries have it; there is none for one that does not fit."""
        try:
            is_stored = key in self.entries
        except TypeError:  # what cannot be hashed may be stored as something else
            is_stored = False
        if is_stored:
            return key
        try:
            return self._fit_key(key)
        except StateValueError as error:
            raise KeyError(key) from error

    def _sees(self, key: Any) -> bool:
        column = self._column
        return column.kind.ttl_clock != "event" or self.expiries[key] > column.times.seen

    def __setitem__(self, key: Any, value: Any) -> None:
        key, value = self._fit_key(key), private_copy(self._fit_value(value))
        self._put(key, value)

    def _put(self, key: Any, value: Any) -> None:
        self._note_put(key)
        self.entries[key] = value
        kind = self._column.kind
        if kind.ttl is not None:
            until = self._column.times.of_call(kind)
            # In event time an older row does not shorten the life of an entry.
            self.expiries[key] = max(until, self.expiries.get(key, until)) if kind.ttl_clock == "event" else until
        self.changed = True

    def __delitem__(self, key: Any) -> None:
        key = self._stored(key)
        if key in self.entries and not self._sees(key):
            raise KeyError(key)
        self._note_delete()
        del self.entries[key]
        self.expiries.pop(key, None)
        self.changed = True

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key in self.entries if self._sees(key)])

    def __len__(self) -> int:
        return sum(map(self._sees, self.entries))

    def __repr__(self) -> str:
        return repr({key: self.entries[key] for key in self})

    def replace(self, entries: Mapping[Any, Any]) -> None:
        """Replace all entries; the map stays if one does not fit the declared types.

        Parameters
        ----------
        entries : mapping
            The entries.

        Raises
        ------
        StateValueError
            If a key or a value does not fit.

        Examples
        --------
        >>> def restart(row, state):
        ...     state["counts"].replace({row["word"]: 1})
        """
        after = [(self._fit_key(key), private_copy(self._fit_value(value))) for key, value in entries.items()]
        self.clear()
        for key, value in after:
            self._put(key, value)

    def clear(self) -> None:
        """Remove all entries.

        Examples
        --------
        >>> def restart(row, state):
        ...     state["counts"].clear()
        """
        self._note_delete()
        self.entries.clear()
        self.expiries.clear()
        self.changed = True

    def _note_put(self, key: Any) -> None:
        """Note in the log how the next change of an entry is undone."""
        if self._log is not None and self._copied_in != self._log.span:
            before = self.entries.get(key, _ABSENT), self.expiries.get(key)
            self._log.add(partial(self._restore_entry, key, *before, self.changed))

    def _note_delete(self) -> None:
        """Note in the log how the next deletion is undone; a copy, since an entry that is put back would come last."""
        if self._log is not None and self._copied_in != self._log.span:
            self._copied_in = self._log.span
            self._log.add(partial(self._restore, dict(self.entries), dict(self.expiries), self.changed))

    def _restore_entry(self, key: Any, value: Any, expiry: float | None, changed: bool) -> None:
        if value is _ABSENT:
            self.entries.pop(key, None)
        else:
            self.entries[key] = value
        if expiry is None:
            self.expiries.pop(key, None)
        else:
            self.expiries[key] = expiry
        self.changed = changed

    def _restore(self, entries: dict[Any, Any], expiries: dict[Any, float], changed: bool) -> None:
        self.entries, self.expiries, self.changed = entries, expiries, changed
