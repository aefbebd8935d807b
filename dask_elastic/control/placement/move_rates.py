"""How long a move of a home pauses its executor: fitted to the moves that were carried out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from dask_elastic.control.placement.settings import PlacementSettings

KEPT = 64
"""Newest moves from which rates are fitted."""

_SLOWEST, _FASTEST = 1e-2, 1e2
"""Bounds of the measured bandwidth, as a multiple of the assumed one: a few pauses say little about either end."""


@dataclass(frozen=True)
class MoveRates:
    """What the pause of a move consists of.

    Parameters
    ----------
    handover : float
        Seconds for which rows wait, whatever the size of the state.
    transfer : float
        Bytes per second at which state moves.
    paused : float
        The share of the state that moves while rows wait; the rest is copied before.
    hop : float
        Seconds by which a row is later whose task is not at home: a round trip.

    Examples
    --------
    >>> rates = MoveRates(handover=0.05, transfer=100e6, paused=0.1)
    >>> round(rates.pause(50e6), 3), round(rates.shard_pause(5e6), 3)
    (0.1, 0.1)
    """

    handover: float
    transfer: float
    paused: float = 1.0
    hop: float = 0.0

    def pause(self, moved_bytes: float) -> float:
        """Return the seconds for which rows of an executor wait while its home moves, with some bytes of state."""
        return self.handover + self.paused * moved_bytes / self.transfer

    def shard_pause(self, moved_bytes: float) -> float:
        """Return the seconds for which rows of a shard wait while it moves, with some bytes of state."""
        return self.handover + moved_bytes / self.transfer


class MeasuredMoves:
    """Learns the rates of moves from the pauses of those that were carried out.

    Parameters
    ----------
    settings : PlacementSettings
        The assumed rates, which count as much as two moves: one without state, and one of a second's state.

    Notes
    -----
    State migration, section 3: a migration has a fixed cost, and one by the size of the state. Here that is the state
    that moves during the pause (decision 84). Until a move is measured, all state counts as such.

    Examples
    --------
    >>> moves = MeasuredMoves(PlacementSettings(handover=0.05, transfer=100e6))
    >>> moves.rates()
    MoveRates(handover=0.05, transfer=100000000.0, paused=1.0, hop=0.001)
    >>> for _ in range(20):
    ...     moves.observe(20e6, 0.0, 0.01)
    >>> round(moves.rates().handover, 3), moves.rates().paused
    (0.012, 0.0)
    """

    def __init__(self, settings: PlacementSettings):
        self._assumed = MoveRates(settings.handover, settings.transfer, hop=settings.hop)
        self._moves: deque[tuple[float, float, float]] = deque(maxlen=KEPT)

    def observe(self, moved_bytes: float, paused_bytes: float, pause: float) -> None:
        """Take in a move.

        Parameters
        ----------
        moved_bytes : float
            Bytes of state that moved.
        paused_bytes : float
            Those that moved during the pause.
        pause : float
            Seconds for which rows of the executor waited.
        """
        self._moves.append((moved_bytes, min(paused_bytes, moved_bytes), pause))

    def rates(self) -> MoveRates:
        """Return the rates that fit the assumed ones and the newest moves best, by least squares."""
        assumed = self._assumed
        if not self._moves:
            return assumed
        moved, sent, pauses = np.array(self._moves).T
        # In seconds that the state would take at the assumed bandwidth.
        size = np.concatenate(([0.0, 1.0], sent / assumed.transfer))
        pause = np.concatenate(([assumed.handover, assumed.handover + 1.0], pauses))
        spread = float(((size - size.mean()) ** 2).sum())
        slope = float(((size - size.mean()) * pause).sum()) / spread
        slope = min(max(slope, 1 / _FASTEST), 1 / _SLOWEST)
        whole = float(moved.sum())
        share = float(sent.sum()) / whole if whole > 0 else 1.0
        return MoveRates(
            max(float(pause.mean() - slope * size.mean()), 0.0), assumed.transfer / slope, share, assumed.hop
        )
