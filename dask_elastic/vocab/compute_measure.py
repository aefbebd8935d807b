"""Measures of one of several computes that run in the same tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dask_elastic.vocab.row_counts import RowCounts


class ComputeTally(NamedTuple):
    """What became of the rows of a compute, and how long it has processed them.

    Parameters
    ----------
    windows : RowCounts
        What became of the rows; zeros without windows.
    microseconds : int
        Processor time of its logic.

    Examples
    --------
    >>> ComputeTally(RowCounts(late=1), 20).plus(ComputeTally(RowCounts(), 5))
    ComputeTally(windows=RowCounts(on_time=0, corrected=0, late=1, outside=0, untimed=0), microseconds=25)
    """

    windows: RowCounts = RowCounts()
    microseconds: int = 0

    def plus(self, other: ComputeTally) -> ComputeTally:
        """Return the sums.

        Parameters
        ----------
        other : ComputeTally
            Another tally.

        Returns
        -------
        ComputeTally
            The sums.
        """
        return ComputeTally(self.windows.plus(other.windows), self.microseconds + other.microseconds)


_LENGTH = len(RowCounts._fields) + 1


def flattened(tallies: Iterable[ComputeTally]) -> tuple[int, ...]:
    """Return tallies as numbers, as messages carry them.

    Parameters
    ----------
    tallies : iterable of ComputeTally
        One for each compute.

    Returns
    -------
    tuple of int
        The numbers; empty if all are zero.

    Examples
    --------
    >>> flattened([ComputeTally(RowCounts(late=1), 20), ComputeTally()])
    (0, 0, 1, 0, 0, 20, 0, 0, 0, 0, 0, 0)
    >>> flattened([ComputeTally()])
    ()
    """
    numbers = tuple(number for tally in tallies for number in (*tally.windows, tally.microseconds))
    return numbers if any(numbers) else ()


def unflattened(numbers: tuple[int, ...]) -> list[ComputeTally]:
    """Return the inverse of `flattened`; an empty list for no numbers.

    Parameters
    ----------
    numbers : tuple of int
        What `flattened` returned.

    Returns
    -------
    list of ComputeTally
        The tallies.

    Examples
    --------
    >>> unflattened((0, 0, 1, 0, 0, 20))[0].windows.late
    1
    """
    parts = (numbers[start : start + _LENGTH] for start in range(0, len(numbers), _LENGTH))
    return [ComputeTally(RowCounts(*part[:-1]), part[-1]) for part in parts]


class ComputeMeasure(NamedTuple):
    """Measures of one of several computes that run in the tasks of an executor.

    Parameters
    ----------
    operator : str
        The compute.
    state_bytes : int
        Size of the primary copy of its state.
    seconds : float
        Processor time of its logic, since the job or its last restart began.
    windows : RowCounts or None
        What became of its rows, since then; None without windows.
    open_windows : int or None
        Its open instances, or slices of instances, counted per key; None without windows.

    Examples
    --------
    >>> ComputeMeasure("planes", 400, 0.2).windows is None
    True
    """

    operator: str
    state_bytes: int
    seconds: float
    windows: RowCounts | None = None
    open_windows: int | None = None
