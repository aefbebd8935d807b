"""What the partial results of windows have cost, as sums from which the costs of a row and of a merge follow."""

from __future__ import annotations

from typing import NamedTuple

BATCH_LOOKUPS, STEP_LOOKUPS = 1500, 180
"""A batch, and each slice and each instance of a batch, cost as much as so many slices of a key, however few there are.
"""


def update_lookups(keys: float, slices: float, instances: float) -> float:
    """Return the work of consolidating open instances from slices after a batch.

    Parameters
    ----------
    keys : float
        Keys with new rows.
    slices, instances : float
        The slices that are looked up for each of them, and the instances that are merged from these.

    Returns
    -------
    float
        The work, in slices of a key that are looked up and merged.

    Examples
    --------
    >>> update_lookups(keys=1000, slices=11, instances=6)
    15560.0
    """
    return float(keys * slices + STEP_LOOKUPS * (slices + instances) + BATCH_LOOKUPS)


class WindowCosts(NamedTuple):
    """Sums over the work of tasks that keep partial results of windows; those of several tasks add up.

    Parameters
    ----------
    rows, batches, pairs, squares : float
        Rows and batches that were added; pairs of a row and a partial that it was added to; the squares of each batch's
        pairs.
    adding, products, deviation : float
        CPU seconds of adding them; each batch's seconds times its pairs; and the squares of its seconds: what a
        least-squares fit needs beside `squares` to tell the cost of a batch from that of a pair, and how sure that is.
    merged, merging : float
        Keys of partials and of shorter instances that were merged into instances of slices, and the CPU seconds.
    apart, closing : float
        Results of instances that had a partial of their own, without slices, and the CPU seconds of closing them.
    results, instances : float
        Results of closed instances; and these instances, each as the share of the executor's shards that closed it.
    corrections, correcting : float
        Pairs of a row and a closed instance that it corrects, and the CPU seconds of correcting instances where windows
        may share slices, without looking up these; of other instances, they are part of `adding`.
    updates, emitting : float
        Results of open instances, and the CPU seconds of making rows of them; with either plan.
    lookups, looked, consolidating : float
        The work of consolidating them from slices, and closed instances with a first late row of a key, as of
        `update_lookups`, that there would be; the part of it that was done, because the partials are of slices; and the
        CPU seconds of this part.
    tried, trying : float
        Pairs of a row and an instance that rows were added to only to measure it, and the CPU seconds that these pairs
        took, without those of a batch.

    Examples
    --------
    >>> total = WindowCosts.of_batch(1, pairs=2, seconds=0.5).plus(WindowCosts.of_batch(2, 4, 0.7))
    >>> total.rows, total.batches, total.pairs, total.squares, round(total.adding, 3)
    (3.0, 2.0, 6.0, 20.0, 1.2)
    """

    rows: float = 0.0
    batches: float = 0.0
    pairs: float = 0.0
    squares: float = 0.0
    adding: float = 0.0
    products: float = 0.0
    deviation: float = 0.0
    merged: float = 0.0
    merging: float = 0.0
    apart: float = 0.0
    closing: float = 0.0
    results: float = 0.0
    instances: float = 0.0
    corrections: float = 0.0
    correcting: float = 0.0
    updates: float = 0.0
    emitting: float = 0.0
    lookups: float = 0.0
    looked: float = 0.0
    consolidating: float = 0.0
    tried: float = 0.0
    trying: float = 0.0

    @classmethod
    def of_batch(cls, rows: int, pairs: int, seconds: float) -> WindowCosts:
        """Return the sums of one batch.

        Parameters
        ----------
        rows : int
            Its rows.
        pairs : int
            Pairs of a row and a partial.
        seconds : float
            The CPU seconds of adding them.
        """
        return cls(float(rows), 1.0, float(pairs), float(pairs) * pairs, seconds, seconds * pairs, seconds**2)

    @property
    def seconds(self) -> float:
        """CPU seconds of all of it."""
        return self.adding + self.merging + self.closing + self.correcting + self.updating

    @property
    def updating(self) -> float:
        """CPU seconds of the results of open instances."""
        return self.emitting + self.consolidating

    def plus(self, other: tuple[float, ...]) -> WindowCosts:
        """Return the sums; `other` has the same fields, or none.

        Parameters
        ----------
        other : tuple of float
            Other sums.

        Returns
        -------
        WindowCosts
            The sums of both.
        """
        return WindowCosts(*(one + two for one, two in zip(self, other, strict=True))) if other else self

    def since(self, before: WindowCosts) -> WindowCosts | None:
        """Return the sums since an earlier moment; None if they have begun anew in the meantime.

        Parameters
        ----------
        before : WindowCosts
            The sums then.

        Returns
        -------
        WindowCosts or None
            The differences.

        Examples
        --------
        >>> WindowCosts(batches=3).since(WindowCosts(batches=1)).batches
        2
        """
        found = WindowCosts(*(now - then for now, then in zip(self, before, strict=True)))
        return None if min(found) < 0 else found


class WindowTally:
    """The sums of one task, which adds a batch in a fraction of a microsecond; other threads only read.

    Examples
    --------
    >>> tally = WindowTally()
    >>> tally.add_batch(rows=1, pairs=2, seconds=0.5)
    >>> tally.add(WindowCosts(merged=4))
    >>> tally.costs() == WindowCosts.of_batch(1, 2, 0.5)._replace(merged=4)
    True
    """

    __slots__ = ("_batches", "_others")

    def __init__(self) -> None:
        self._batches = [0.0] * 7
        self._others = WindowCosts()

    def add_batch(self, rows: int, pairs: int, seconds: float) -> None:
        """Add a batch; see `WindowCosts.of_batch`."""
        sums = self._batches
        sums[0] += rows
        sums[1] += 1
        sums[2] += pairs
        sums[3] += pairs * pairs
        sums[4] += seconds
        sums[5] += seconds * pairs
        sums[6] += seconds * seconds

    def add(self, costs: tuple[float, ...]) -> None:
        """Add other sums; see `WindowCosts.plus`."""
        self._others = self._others.plus(costs)

    def costs(self) -> WindowCosts:
        """Return the sums so far."""
        return WindowCosts(*self._batches).plus(self._others)
