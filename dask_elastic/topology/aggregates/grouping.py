"""The rows of one batch, grouped by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_RADIX_GROUPS = 1 << 16


class Grouping:
    """The assignment of the rows of a batch to groups.

    Parameters
    ----------
    ordinals : ndarray of intp or None
        The group of each row, from 0 to `count` - 1; None if row i is group i, of which there are `count`.
    count : int
        The number of groups.
    sizes : ndarray of intp, optional
        The number of rows of each group, if the caller knows it.

    Notes
    -----
    `order`, `rows`, `starts` and `sizes` are computed at first use and cached, so that several aggregates over one
    batch share them. Not thread-safe.

    Examples
    --------
    >>> grouping = Grouping(np.array([1, 0, 1]), 2)
    >>> grouping.sizes.tolist(), grouping.order.tolist(), grouping.starts.tolist()
    ([1, 2], [1, 0, 2], [0, 1])
    """

    __slots__ = ("_order", "_ordinals", "_rows", "_sizes", "_starts", "count", "single")

    def __init__(
        self, ordinals: npt.NDArray[np.intp] | None, count: int, sizes: npt.NDArray[np.intp] | None = None
    ) -> None:
        self._ordinals = ordinals
        self.count = count
        # Whether each row is a group of its own, in order: then nothing needs the ordinals.
        self.single = ordinals is None
        self._order: npt.NDArray[np.intp] | None = None
        self._rows: npt.NDArray[np.intp] | None = None
        self._sizes = sizes
        self._starts: npt.NDArray[np.intp] | None = None

    @classmethod
    def by(cls, values: npt.NDArray[np.generic]) -> Grouping:
        """Group rows by equal values.

        Parameters
        ----------
        values : ndarray
            One value per row.

        Returns
        -------
        Grouping
            One group per distinct value, in ascending order of the values.

        Examples
        --------
        >>> Grouping.by(np.array(["b", "a", "b"])).ordinals.tolist()
        [1, 0, 1]
        """
        distinct, ordinals = np.unique(values, return_inverse=True)
        return cls(ordinals.astype(np.intp, copy=False).reshape(-1), len(distinct))

    @classmethod
    def of_single_rows(cls, count: int) -> Grouping:
        """Return the grouping in which each row is a group of its own.

        Parameters
        ----------
        count : int
            The number of rows.

        Returns
        -------
        Grouping
            Row i is group i; aggregates of a compute need no pass by group for it.

        Examples
        --------
        >>> grouping = Grouping.of_single_rows(3)
        >>> grouping.single, grouping.ordinals.tolist(), grouping.sizes.tolist()
        (True, [0, 1, 2], [1, 1, 1])
        """
        return cls(None, count)

    @property
    def ordinals(self) -> npt.NDArray[np.intp]:
        """The group of each row."""
        if self._ordinals is None:
            self._ordinals = np.arange(self.count)
        return self._ordinals

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        """The number of rows of each group."""
        if self._sizes is None:
            if self.single:
                self._sizes = np.ones(self.count, np.intp)
            else:
                self._sizes = np.bincount(self.ordinals, minlength=self.count)
        return self._sizes

    def sums(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the sum of each group's values as float64.

        Parameters
        ----------
        values : ndarray
            One number per row.

        Returns
        -------
        ndarray of float64
            One sum per group; zero for a group without rows.

        Examples
        --------
        >>> Grouping(np.array([1, 0, 1]), 2).sums(np.array([1, 2, 4])).tolist()
        [2.0, 5.0]
        """
        if self.single:
            return values.astype(np.float64, copy=False)
        return np.bincount(self.ordinals, values, self.count).astype(np.float64, copy=False)

    @property
    def is_sorted(self) -> bool:
        """Whether the rows are sorted by group: `order` is then their own."""
        return self.single or self.count == 1 or not np.count_nonzero(self.ordinals[1:] < self.ordinals[:-1])

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """Row numbers sorted by group; the rows of a group keep their order."""
        if self._order is None:
            # NumPy radix-sorts 16-bit integers, several times as fast as wider ones.
            narrow = self.ordinals.astype(np.uint16) if self.count <= _RADIX_GROUPS else self.ordinals
            self._order = np.argsort(narrow, kind="stable")
        return self._order

    @property
    def starts(self) -> npt.NDArray[np.intp]:
        """The start of each group within `order`, for `ufunc.reduceat`; every group must have a row."""
        if self._starts is None:
            self._starts = np.cumsum(self.sizes) - self.sizes
        return self._starts

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """One row of each group; every group must have one."""
        if self._rows is None:
            self._rows = np.empty(self.count, np.intp)
            self._rows[self.ordinals] = np.arange(len(self.ordinals))
        return self._rows

    def restricted(self, chosen: npt.NDArray[np.bool_]) -> Grouping:
        """Return the grouping of the chosen rows, with the same groups; some may have no rows."""
        return Grouping(self.ordinals[chosen], self.count)

    def __len__(self) -> int:
        return self.count if self._ordinals is None else len(self._ordinals)

    def __repr__(self) -> str:
        return f"Grouping({len(self)} rows in {self.count} groups)"
