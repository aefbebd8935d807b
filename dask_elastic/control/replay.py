"""Recorded snapshots, decided once more."""

from __future__ import annotations

from collections.abc import Iterable

from dask_elastic.control.loop import ControlLoop
from dask_elastic.control.settings import ControlSettings
from dask_elastic.vocab.plan import Plan
from dask_elastic.vocab.snapshot import Snapshot


def replay(
    snapshots: Iterable[Snapshot], settings: ControlSettings | None = None, planner: str | None = None
) -> list[Plan]:
    """Return what the control loop decides at each of the snapshots.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        What was recorded, oldest first.
    settings : ControlSettings, optional
        How the loop decides.
    planner : str, optional
        The core planner, whatever the jobs say.

    Returns
    -------
    list of Plan
        One for each snapshot.

    Raises
    ------
    UnknownPlanner
        If no core planner has that name.
    """
    loop = ControlLoop(settings, planner)
    return [loop.tick(snapshot) for snapshot in snapshots]
