"""Cuts of one executor's state for checkpoints: when all rows before the barrier are in the primary copy."""

from __future__ import annotations

_FIRST_TOKEN = -3
"""Tokens of the flushes for cuts count down from here; see `flushes.TRIM` and `executor.FINAL_FLUSH`."""


class Cuts:
    """The cut that an executor is to make; the caller holds the executor's lock.

    Attributes
    ----------
    checkpoint : int or None
        The checkpoint whose barriers are aligned and whose cut is still to be made.
    under_way : bool
        Whether the barriers of a checkpoint are aligned and the state is not copied yet, so that nothing may change it
        but the rows before the barriers.

    Examples
    --------
    >>> cuts = Cuts()
    >>> cuts.begin(7)
    >>> cuts.flush_due(pending_rows=3), cuts.flush_due(pending_rows=0), cuts.flush_due(pending_rows=0)
    (None, -10, None)
    >>> cuts.flushed(-10)
    7
    """

    __slots__ = ("_newest", "_requested", "checkpoint", "under_way")

    def __init__(self) -> None:
        self.checkpoint: int | None = None
        self.under_way = False
        self._requested = False
        self._newest = 0

    def begin(self, checkpoint: int) -> None:
        """Begin a cut: the barriers are aligned, and no row behind them is accepted before the cut is made.

        A checkpoint that was given up, or is older than another one that has begun, changes nothing: the thread that
        aligned it was late.
        """
        if checkpoint > self._newest:
            self.checkpoint, self._requested, self._newest = checkpoint, False, checkpoint
            self.under_way = True

    def give_up(self, checkpoint: int) -> None:
        """Give up a cut, unless it has been made."""
        if checkpoint >= self._newest:
            # Its flush may be complete, and the thread that cuts not begun: it will not cut.
            self.under_way = False
        self._newest = max(self._newest, checkpoint)
        if self.checkpoint is not None and self.checkpoint <= checkpoint:
            self.checkpoint = None

    def flush_due(self, pending_rows: int) -> int | None:
        """Return the token of the flush that brings all rows before the barrier into the primary copy, once.

        None as long as such rows are not settled, and without a cut to make.
        """
        if self.checkpoint is None or self._requested or pending_rows:
            return None
        self._requested = True
        return _FIRST_TOKEN - self.checkpoint

    def flushed(self, token: int) -> int | None:
        """Return the checkpoint whose cut is made now that a flush is complete; None if that belongs to no cut."""
        if self.checkpoint is None or token != _FIRST_TOKEN - self.checkpoint:
            return None
        checkpoint, self.checkpoint = self.checkpoint, None
        return checkpoint

    def made(self) -> None:
        """Note that the state is copied; the driver calls this when it has carried out the cut."""
        self.under_way = self.checkpoint is not None
