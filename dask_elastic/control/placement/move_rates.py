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

    Examples
    --------
    >>> MoveRates(handover=0.05, transfer=100e6).pause(5e6)
    0.1
    """

    handover: float
    transfer: float

    def pause(self, moved_bytes: float) -> float:
        """Return the seconds for which rows wait while some bytes of state move."""
        return self.handover + moved_bytes / self.transfer


class MeasuredMoves:
    """Learns the rates of moves from the pauses of those that were carried out.

    Parameters
    ----------
    settings : PlacementSettings
        The assumed rates, which count as much as two moves: one without state, and one of a second's state.

    Notes
    -----
    State migration, section 3: a migration has a fixed cost, and one by the size of the state.

    Examples
    --------
    >>> moves = MeasuredMoves(PlacementSettings(handover=0.05, transfer=100e6))
    >>> moves.rates()
    MoveRates(handover=0.05, transfer=100000000.0)
    >>> for _ in range(20):
    ...     moves.observe(0.0, 0.01)
    >>> round(moves.rates().handover, 3)
    0.012
    """

    def __init__(self, settings: PlacementSettings):
        self._assumed = MoveRates(settings.handover, settings.transfer)
        self._moves: deque[tuple[float, float]] = deque(maxlen=KEPT)

    def observe(self, moved_bytes: float, pause: float) -> None:
        """Take in a move.

        Parameters
        ----------
        moved_bytes : float
            Bytes of state that moved.
        pause : float
            Seconds for which rows of the executor waited.
        """
        self._moves.append((moved_bytes, pause))

    def rates(self) -> MoveRates:
        """Return the rates that fit the assumed ones and the newest moves best, by least squares."""
        assumed = self._assumed
        if not self._moves:
            return assumed
        moved, pauses = np.array(self._moves).T
        # In seconds that the state would take at the assumed bandwidth.
        size = np.concatenate(([0.0, 1.0], moved / assumed.transfer))
        pause = np.concatenate(([assumed.handover, assumed.handover + 1.0], pauses))
        spread = float(((size - size.mean()) ** 2).sum())
        slope = float(((size - size.mean()) * pause).sum()) / spread
        slope = min(max(slope, 1 / _FASTEST), 1 / _SLOWEST)
        return MoveRates(max(float(pause.mean() - slope * size.mean()), 0.0), assumed.transfer / slope)
