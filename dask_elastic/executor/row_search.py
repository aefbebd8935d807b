"""Finds the rows on which user code raises, with few calls."""

from __future__ import annotations

from collections.abc import Callable

from dask_elastic.vocab.errors import ElasticError, StateValueError

_REMEMBERED = 1024
"""Rows over which the share of failing rows is averaged."""

_BEST = 0.69
"""The best number of failing rows to expect in a group: about ln 2, for which half of the groups fail."""


class RowSearch:
    """Runs user code on groups of consecutive rows, and narrows a group that raises down to its first failing row.

    Notes
    -----
    Generalized binary splitting (Hwang, 1972), with groups in the order of the rows: the rows before the first failing
    one are processed when it is found, and never again. The recent share of failing rows determines the size of the
    groups: the whole range if failing rows are rare, single rows if most rows fail. If the first half of a group that
    raises succeeds, the second half contains the failing row and is not run as a whole.

    Examples
    --------
    >>> search, calls, skipped = RowSearch(), [], []
    >>> def process(start, stop):
    ...     calls.append((start, stop))
    ...     if start <= 2 < stop:
    ...         raise ValueError("two")
    >>> search.run(process, lambda row, error: skipped.append((row, str(error))), 8)
    >>> skipped, calls[:4]
    ([(2, 'two')], [(0, 8), (0, 4), (0, 2), (2, 3)])
    """

    def __init__(self) -> None:
        self._rows = self._failed = 0.0

    def run(self, process: Callable[[int, int], None], skip: Callable[[int, Exception], None], count: int) -> None:
        """Process all rows except those that raise on their own.

        Parameters
        ----------
        process : callable
            ``process(start, stop)`` processes a range of rows; it has no effect if it raises.
        skip : callable
            ``skip(row, error)`` takes a row that raises on its own.
        count : int
            The number of rows.

        Raises
        ------
        ElasticError
            If `process` raises one for which no row is at fault; see `is_failure_of_row`.
        """
        start = 0
        while start < count:
            stop = self._advanced(process, skip, start, start + self._size(count - start))
            self._rows += stop - start
            if self._rows > _REMEMBERED:
                self._failed *= _REMEMBERED / self._rows
                self._rows = _REMEMBERED
            start = stop

    def _size(self, left: int) -> int:
        """Return the number of rows of the next group."""
        if self._failed * left <= _BEST * self._rows:
            return left
        return max(1, int(_BEST * self._rows / self._failed))

    def _advanced(
        self, process: Callable[[int, int], None], skip: Callable[[int, Exception], None], start: int, stop: int
    ) -> int:
        """Process a group up to its end or its first failing row; return the row that follows."""
        error = _error(process, start, stop)
        if error is None:
            return stop
        self._failed += 1
        while stop - start > 1:
            middle = (start + stop) // 2
            error = _error(process, start, middle)
            if error is None:
                start = middle
            else:
                stop = middle
        # After a first half that succeeded, the row has not been run on its own.
        if error is None:
            error = _error(process, start, stop)
        if error is not None:
            skip(start, error)
        return stop


def _error(process: Callable[[int, int], None], start: int, stop: int) -> Exception | None:
    """Return the error that a range of rows raises, None if it is processed."""
    try:
        process(start, stop)
    except Exception as error:
        if not is_failure_of_row(error):
            raise
        return error
    return None


def is_failure_of_row(error: BaseException) -> bool:
    """Return whether an exception may be the fault of a row: one of user code, or of a value that it gave to its state.

    Errors of dask_elastic itself, such as an undeclared name, are no row's fault.
    """
    return not isinstance(error, ElasticError) or isinstance(error, StateValueError)
