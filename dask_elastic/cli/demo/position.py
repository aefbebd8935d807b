"""How many flights of the feed a job has read, over all of its generations."""

from __future__ import annotations


class Position:
    """Continues the count of a job whose counters start at 0 with each generation.

    The count of a later generation is approximate: it starts with what was known when the checkpoint began from which
    the job continues.

    Examples
    --------
    >>> position = Position()
    >>> position.of(10.0, generation=1, rows=100, checkpoint=None)
    100
    >>> position.of(11.0, generation=1, rows=200, checkpoint=10.5)
    200
    >>> position.of(15.0, generation=2, rows=30, checkpoint=10.5)
    130
    """

    def __init__(self) -> None:
        self._generation: int | None = None
        self._before = 0
        self._looks: list[tuple[float, int]] = []

    def of(self, now: float, generation: int, rows: int, checkpoint: float | None) -> int:
        """Return the count.

        Parameters
        ----------
        now : float
            The time, in seconds.
        generation : int
            The job's generation.
        rows : int
            The rows that this generation has read.
        checkpoint : float or None
            When the newest complete checkpoint began; None without one.
        """
        if generation != self._generation:
            began = -1.0 if checkpoint is None else checkpoint
            self._before = max((count for at, count in self._looks if at <= began), default=0)
            self._generation = generation
        count = self._before + rows
        self._looks.append((now, count))
        return count
