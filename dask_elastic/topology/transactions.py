"""The prepared transactions of one sink writer that are not committed yet."""

from __future__ import annotations

from collections.abc import Sequence


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

    The writer ends when a checkpoint behind its last row is committed.

    >>> transactions.add(4, "rows 20 to 29", last=True)
    >>> transactions.is_finished, transactions.complete(4)
    (False, ('rows 10 to 19', 'rows 20 to 29'))
    >>> transactions.committed(4)
    >>> transactions.is_finished
    True
    """

    def __init__(self) -> None:
        self._prepared: dict[int, object] = {}
        # The first checkpoint behind the last row.
        self._last: int | None = None
        self._committed = 0

    def add(self, checkpoint: int, prepared: object | None, last: bool = False) -> None:
        """Add what `SinkWriter.prepare` returned.

        Parameters
        ----------
        checkpoint : int
            The number of the checkpoint.
        prepared : object or None
            The handle; None if there is nothing to commit.
        last : bool, optional
            Whether no row follows.
        """
        if prepared is not None:
            self._prepared[checkpoint] = prepared
        if last and self._last is None:
            self._last = checkpoint

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

    def committed(self, checkpoint: int) -> None:
        """Note that what `complete` returned for a checkpoint is committed.

        Parameters
        ----------
        checkpoint : int
            The number of the checkpoint.
        """
        self._committed = max(self._committed, checkpoint)

    @property
    def is_finished(self) -> bool:
        """Whether the last rows are committed."""
        return self._last is not None and self._committed >= self._last


def recovered_writers(writers: int, nodes: Sequence[int], node: int) -> list[int]:
    """Return whose handles a writer commits after a restart: its own, and those of nodes that have no writer any more.

    Parameters
    ----------
    writers : int
        The writers that have prepared something were on nodes below this number.
    nodes : sequence of int
        The nodes that have writers now, in order; the first one takes the handles of nodes that have none.
    node : int
        The node of the writer.

    Returns
    -------
    list of int
        Nodes of writers.

    Examples
    --------
    >>> recovered_writers(4, nodes=[1, 2], node=1), recovered_writers(4, nodes=[1, 2], node=2)
    ([0, 1, 3], [2])
    """
    return [writer for writer in range(writers) if (writer if writer in nodes else nodes[0]) == node]
