"""Traffic from key groups of an executor to those of another operator, as it was sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OTHERS = -1
"""In place of a target: all other groups of the operator together, which get equal parts."""


@dataclass(frozen=True, eq=False)
class GroupFlow:
    """Bytes that key groups of an executor send to those of one operator.

    Parameters
    ----------
    operator : str
        The operator that gets them.
    source, target : int array, shape (pairs,)
        The group that sends and the one that receives; `OTHERS` for all groups of which there is no pair.
    rate : float array, shape (pairs,)
        Bytes per second.

    Examples
    --------
    >>> flow = GroupFlow("totals", np.array([3, 3]), np.array([7, OTHERS]), np.array([900.0, 100.0]))
    >>> float(flow.rate.sum())
    1000.0
    """

    operator: str
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    rate: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        return int(self.source.nbytes + self.target.nbytes + self.rate.nbytes)
