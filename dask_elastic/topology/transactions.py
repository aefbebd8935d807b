"""The prepared transactions of one sink writer that are not committed yet."""

from __future__ import annotations


class Transactions:
    """Keeps what a writer prepared until a checkpoint that covers it is complete.

    A checkpoint can be given up while the next one is taken; the rows that were prepared for it are then part of the
    next one. So each acknowledgement contains all handles that are not committed, not only the newest.

    Examples
    --------
    >>> transactions = Transactions()
    >>> transactions.add(1, "rows 0 to 9")
    >>> transactions.add(2, None)
    >>> transactions.add(3, "rows 10 to 19")
    >>> transactions.handles
    ('rows 0 to 9', 'rows 10 to 19')
    >>> transactions.complete(2)
    ('rows 0 to 9',)
    >>> transactions.handles
    ('rows 10 to 19',)
    """

    def __init__(self) -> None:
        self._prepared: dict[int, object] = {}

    def add(self, checkpoint: int, prepared: object | None) -> None:
        """Add what `SinkWriter.prepare` returned.

        Parameters
        ----------
        checkpoint : int
            The number of the checkpoint.
        prepared : object or None
            The handle; None if there is nothing to commit.
        """
        if prepared is not None:
            self._prepared[checkpoint] = prepared

    @property
    def handles(self) -> tuple[object, ...]:
        """The handles that the acknowledgement of a checkpoint contains, oldest first."""
        return tuple(self._prepared[number] for number in sorted(self._prepared))

    def complete(self, checkpoint: int) -> tuple[object, ...]:
        """Remove and return what is to be committed now that a checkpoint is complete.

        Parameters
        ----------
        checkpoint : int
            The number of the complete checkpoint.

        Returns
        -------
        tuple of object
            The handles of this checkpoint and of earlier ones that were given up, oldest first.
        """
        due = sorted(number for number in self._prepared if number <= checkpoint)
        return tuple(self._prepared.pop(number) for number in due)
