"""One key's list, for logic per row and per key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, overload

from dask_elastic.state.changes.fitting import Fit
from dask_elastic.state.changes.undo_log import UndoLog
from dask_elastic.state.list_column import ListColumn, negative_most
from dask_elastic.topology.aggregates.user_aggregate import private_copy


class ListCell(Sequence[Any]):
    """One key's list: a read-only Python sequence with methods that change it.

    Examples
    --------
    >>> def remember(row, state):
    ...     recent = state["recent"]
    ...     recent.append(row["value"])
    ...     recent.keep_newest(10)
    ...     return {"mean": sum(recent) / len(recent)}
    """

    def __init__(self, column: ListColumn, position: int, fit: Fit, log: UndoLog | None = None) -> None:
        self._column = column
        self._fit = fit
        self._log = log
        self._position = position
        self._old: list[Any] | None = None
        self._expiries: list[float] = []
        self.rewritten = False
        self.added: list[Any] = []
        self.until: list[float] = []

    def _read(self) -> list[Any]:
        if self._old is None:
            self._old, self._expiries = self._column.python(self._position)
        return self._old

    def _fitting(self, elements: Iterable[Any]) -> list[Any]:
        fit = self._fit
        return [private_copy(fit(element)) for element in elements]

    def _add(self, elements: list[Any]) -> None:
        self.added += elements
        kind = self._column.kind
        if kind.ttl is not None:
            self.until += [self._column.times.of_call(kind)] * len(elements)

    @property
    def kept(self) -> tuple[list[Any], list[float]]:
        """The stored elements that were not removed, and their expiry times."""
        return self._read(), self._expiries

    def _seen(self) -> list[Any]:
        elements = [*self._read(), *self.added]
        if self._column.kind.ttl_clock != "event":
            return elements
        limit, until = self._column.times.seen, [*self._expiries, *self.until]
        return [element for element, end in zip(elements, until, strict=True) if end > limit]

    def __len__(self) -> int:
        if self._column.kind.ttl_clock == "event":
            return len(self._seen())
        return len(self._read()) + len(self.added)

    def __iter__(self) -> Iterator[Any]:
        return map(private_copy, self._seen())

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        return private_copy(self._seen()[place])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def append(self, element: Any) -> None:
        """Append an element.

        Parameters
        ----------
        element : object
            A value of the declared type; not None.

        Raises
        ------
        StateValueError
            If it does not fit the declared type.

        Examples
        --------
        >>> def remember(row, state):
        ...     state["recent"].append(row["value"])
        """
        added = private_copy(self._fit(element))
        self._note()
        self._add([added])

    def extend(self, elements: Iterable[Any]) -> None:
        """Append several elements, in their order.

        Parameters
        ----------
        elements : iterable
            Values of the declared type.

        Raises
        ------
        StateValueError
            If one does not fit the declared type; none is appended.

        Examples
        --------
        >>> def remember(key, batch, state):
        ...     state["recent"].extend(batch["value"].to_pylist())
        """
        added = self._fitting(elements)
        self._note()
        self._add(added)

    def keep_newest(self, most: int) -> None:
        """Remove all but the last elements.

        Parameters
        ----------
        most : int
            How many elements to keep, at most.

        Raises
        ------
        StateError
            If `most` is negative.

        Examples
        --------
        >>> def remember(row, state):
        ...     state["recent"].append(row["value"])
        ...     state["recent"].keep_newest(10)
        """
        if most < 0:
            raise negative_most(self._column.name, most)
        surplus = len(self) - most
        if surplus > 0:
            self._note()
            self._drop_expired()
            old = self._read()
            self._old, self._expiries = old[surplus:], self._expiries[surplus:]
            self.added = self.added[max(0, surplus - len(old)) :]
            self.until = self.until[max(0, surplus - len(old)) :]
            self.rewritten = True

    def _drop_expired(self) -> None:
        if self._column.kind.ttl_clock == "event":
            limit, old = self._column.times.seen, self._read()
            self._old = [one for one, end in zip(old, self._expiries, strict=True) if end > limit]
            self._expiries = [end for end in self._expiries if end > limit]
            self.added = [one for one, end in zip(self.added, self.until, strict=True) if end > limit]
            self.until = [end for end in self.until if end > limit]

    def replace(self, elements: Iterable[Any]) -> None:
        """Replace all elements.

        Parameters
        ----------
        elements : iterable
            Values of the declared type.

        Raises
        ------
        StateValueError
            If one does not fit the declared type; the list stays.

        Examples
        --------
        >>> def sort(row, state):
        ...     state["best"].replace(sorted([*state["best"], row["value"]])[-3:])
        """
        after = self._fitting(elements)
        self.clear()
        self._add(after)

    def clear(self) -> None:
        """Remove all elements.

        Examples
        --------
        >>> def restart(row, state):
        ...     state["recent"].clear()
        """
        self._note()
        self._old, self._expiries, self.added, self.until, self.rewritten = [], [], [], [], True

    def _note(self) -> None:
        """Note in the log how the next change is undone; lists are replaced or appended to, so none is copied."""
        if self._log is not None:
            state = self._old, self._expiries, self.added, self.until, self.rewritten
            self._log.add(partial(self._restore, state, len(self.added)))

    def _restore(self, state: tuple[list[Any] | None, list[float], list[Any], list[float], bool], added: int) -> None:
        self._old, self._expiries, self.added, self.until, self.rewritten = state
        del self.added[added:], self.until[added:]
