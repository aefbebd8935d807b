"""The job that a viewer's page shows."""

from __future__ import annotations

from collections.abc import Mapping


class ChosenJob:
    """Chooses the first job, and stays with it until the viewer picks another one.

    Parameters
    ----------
    picked : str or None
        A job that is picked from the start.

    Attributes
    ----------
    name : str or None
        The job to show; None while there are no jobs.

    Examples
    --------
    >>> chosen = ChosenJob()
    >>> chosen.update({"in-trouble": True, "calm": True})
    >>> chosen.update({"calm": True, "in-trouble": True})
    >>> chosen.name
    'in-trouble'
    >>> chosen.update({"calm": True, "in-trouble": False})
    >>> chosen.name
    'calm'
    """

    def __init__(self, picked: str | None = None):
        self.name: str | None = None
        self._picked = picked

    def pick(self, name: str) -> None:
        """Show this job as long as the cluster knows it."""
        self.name = self._picked = name

    def update(self, jobs: Mapping[str, bool]) -> None:
        """Choose among the jobs known now.

        Parameters
        ----------
        jobs : mapping of str to bool
            The jobs, sorted by preference, and whether each needs attention: it runs, or is in trouble.
        """
        if self._picked in jobs:
            self.name = self._picked
            return
        best = next(iter(jobs), None)
        # Do not switch from a running job to another one: the viewer may be reading its figures.
        if self.name is None or self.name not in jobs or (best is not None and jobs[best] and not jobs[self.name]):
            self.name = best
