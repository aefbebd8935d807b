"""Which job a viewer looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_elastic.dashboard.watched import JobCard


class ChosenJob:
    """Follows the newest job that runs, until the viewer picks one.

    Parameters
    ----------
    picked : str or None
        What was picked beforehand.

    Attributes
    ----------
    name : str or None
        The job to show; None while there is none.
    """

    def __init__(self, picked: str | None = None):
        self.name: str | None = None
        self._picked = picked

    def pick(self, name: str) -> None:
        """Stay with this job as long as it is known."""
        self.name = self._picked = name

    def update(self, cards: Mapping[str, JobCard]) -> None:
        """Choose among the jobs that are known now, the one to be preferred first."""
        if self._picked in cards:
            self.name = self._picked
            return
        best = next(iter(cards), None)
        shown = cards.get(self.name) if self.name is not None else None
        # One that still runs is not left for a newer one: somebody may be looking at it.
        if shown is None or (best is not None and cards[best].live and not shown.live):
            self.name = best
