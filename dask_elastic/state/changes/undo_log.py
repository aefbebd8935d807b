"""The log by which changes of the state are undone when user code raises on one row or key."""

from __future__ import annotations

from collections.abc import Callable


class UndoLog:
    """Undoes the changes that user code has made to the cells of a batch since the last `keep`.

    Attributes
    ----------
    span : int
        The number of the current span, from one `keep` or `roll_back` to the next.

    Examples
    --------
    >>> log, values = UndoLog(), [1]
    >>> log.add(values.pop)
    >>> values.append(2)
    >>> log.roll_back()
    >>> values
    [1]
    """

    __slots__ = ("_undo", "span")

    def __init__(self) -> None:
        self.span = 0
        self._undo: list[Callable[[], object]] = []

    def add(self, undo: Callable[[], object]) -> None:
        """Note how the next change is undone."""
        self._undo.append(undo)

    def keep(self) -> None:
        """Keep the changes."""
        self._undo.clear()
        self.span += 1

    def roll_back(self) -> None:
        """Undo the changes, the last one first."""
        while self._undo:
            self._undo.pop()()
        self.span += 1
