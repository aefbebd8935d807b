"""What every core planner is: a planner of cores, and whether it works first fit."""

from __future__ import annotations

from typing import ClassVar, Protocol

from dask_elastic.planning.cores.assignment import CoreAssignment
from dask_elastic.planning.cores.problem import CoreProblem
from dask_elastic.planning.planner import Planner


class CorePlanner(Planner[CoreProblem, CoreAssignment], Protocol):
    """A planner of cores.

    Attributes
    ----------
    first_fit : bool
        Whether state and locality do not count. The control loop then releases a surplus first fit, too, and exchanges
        no core for a nearer one.
    """

    first_fit: ClassVar[bool]
