"""One key's map, for logic per row and per key."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import Any

from dask_elastic.state.map_column import MapColumn
from dask_elastic.state.undo_log import UndoLog
from dask_elastic.topology.aggregates.user_aggregate import private_copy

_ABSENT = object()


class MapCell(MutableMapping[Any, Any]):
    """One key's map, used as a dict.

    Examples
    --------
    >>> def count_words(row, state):
    ...     counts = state["counts"]
    ...     counts[row["word"]] = counts.get(row["word"], 0) + 1
    """

    def __init__(self, column: MapColumn, position: int, now: float, log: UndoLog | None = None) -> None:
        self._log = log
        self._copied_in = -1
        self.entries, self.expiries = column.python(position)
        self.changed = False
        self._expiry = None if column.kind.ttl is None else now + column.kind.ttl

    def __getitem__(self, key: Any) -> Any:
        return private_copy(self.entries[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._note_put(key)
        self.entries[key] = private_copy(value)
        if self._expiry is not None:
            self.expiries[key] = self._expiry
        self.changed = True

    def __delitem__(self, key: Any) -> None:
        self._note_delete()
        del self.entries[key]
        self.expiries.pop(key, None)
        self.changed = True

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self.entries))

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return repr(self.entries)

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
