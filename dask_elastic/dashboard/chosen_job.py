"""The job that a viewer's page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_elastic.dashboard.cluster_view import JobCard


class ChosenJob:
    """Chooses the newest running job, until the viewer picks one.

    Parameters
    ----------
    picked : str or None
        A job that is picked from the start.

    Attributes
    ----------
    name : str or None
        The job to show; None while there are no jobs.
    """

    def __init__(self, picked: str | None = None):
        self.name: str | None = None
        self._picked = picked

    def pick(self, name: str) -> None:
        """Show this job as long as the cluster knows it."""
        self.name = self._picked = name

    def update(self, cards: Mapping[str, JobCard]) -> None:
        """Choose among the jobs known now, which are sorted by preference."""
        if self._picked in cards:
            self.name = self._picked
            return
        best = next(iter(cards), None)
        shown = cards.get(self.name) if self.name is not None else None
        # Do not switch from a running job to a newer one: the viewer may be reading its figures.
        if shown is None or (best is not None and cards[best].live and not shown.live):
            self.name = best
