"""A card in a notebook that follows a job until it ends, while other cells run."""

from __future__ import annotations

import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable
from importlib import import_module
from typing import Any

from dask_elastic.runtime.client.job_card import card
from dask_elastic.runtime.client.job_view import one_line
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.remote_errors import text_of

Follow = Callable[[float], JobDescription]
"""Returns the description of the job as soon as it has ended, after so many seconds at the latest."""


class JobCard:
    """A job at one moment, as notebooks and terminals display it.

    Parameters
    ----------
    described : JobDescription
        The job.
    page : str or None
        The URL of its page on the dashboard.
    note : str
        A sentence that the card shows below the measures.
    """

    def __init__(self, described: JobDescription, page: str | None, note: str = ""):
        self.described = described
        self.page = page
        self.note = note

    def __repr__(self) -> str:
        return " · ".join(filter(None, (one_line(self.described), self.note)))

    def _repr_html_(self) -> str:
        # Without the executors: a table whose rows change every second cannot be read.
        return card(self.described, self.page, executors=False, note=self.note)


def show(described: JobDescription, page: str | None, follow: Follow, seconds: float) -> threading.Thread | None:
    """Display a card, and have a thread update it until the job has ended.

    Parameters
    ----------
    described : JobDescription
        The job.
    page : str or None
        The URL of its page on the dashboard.
    follow : callable
        Waits for the job, see `Follow`.
    seconds : float
        Time between two updates.

    Returns
    -------
    Thread or None
        The thread; None if the card is not updated: outside notebooks, where it is one line, and for a job that has
        ended.
    """
    first = JobCard(described, page)
    if not _in_notebook():
        print(first)
        return None
    handle = import_module("IPython.display").display(first, display_id=True)
    if not described.live:
        return None
    thread = threading.Thread(target=_update, args=(handle, first, follow, seconds), name="job-card", daemon=True)
    thread.start()
    return thread


def _in_notebook() -> bool:
    """Return whether a kernel runs the program; IPython in a terminal would print a line for each update."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def _update(handle: Any, shown: JobCard, follow: Follow, seconds: float) -> None:
    generation, live = shown.described.generation, True
    while live:
        try:
            described = follow(seconds)
        except (Exception, CancelledError) as problem:  # the client or its loop may end at any moment
            return _end(handle, shown, text_of(problem))
        if described.generation != generation:
            return _end(handle, shown, "the job was submitted again")
        shown, live = JobCard(described, shown.page), described.live
        handle.update(shown)
    return None


def _end(handle: Any, shown: JobCard, reason: str) -> None:
    handle.update(JobCard(shown.described, shown.page, f"Not updated any more: {reason}"))
