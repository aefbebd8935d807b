"""What the planners of homes move them for, which decides what may be done instead."""

from __future__ import annotations

from enum import Enum

from dask_elastic.control.placement.choices import kind_of_placement, planner_name

_COLLOCATING = frozenset({"albic", "cola"})
"""Planners that read the traffic between executors."""


class Purpose(Enum):
    """What a planner moves homes for.

    Attributes
    ----------
    BALANCE
        Rows wait less where nodes are balanced, so that waiting tells whether a move is worth its pause.
    TRAFFIC
        The same, and executors that communicate are brought together, which spares processor time for traffic.
    ORDER
        Each node has consecutive executors: a part of a plan would break the order.
    """

    BALANCE = "balance"
    TRAFFIC = "traffic"
    ORDER = "order"

    @staticmethod
    def of(placement: str) -> Purpose:
        """Return the purpose of a placement.

        Parameters
        ----------
        placement : str
            The name of the placement, not ``"spread"``.

        Returns
        -------
        Purpose
            The purpose.

        Examples
        --------
        >>> [Purpose.of(name).value for name in ("flux", "albic", "mtm")]
        ['balance', 'traffic', 'order']
        """
        if kind_of_placement(placement) != "placement":
            return Purpose.ORDER
        return Purpose.TRAFFIC if planner_name(placement) in _COLLOCATING else Purpose.BALANCE
