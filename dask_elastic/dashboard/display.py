"""Everything that a scheduler shows of its jobs, as far as what is installed allows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Scheduler

    from dask_elastic.dashboard.watched import Watched

logger = logging.getLogger("dask_elastic.scheduler")


class Display:
    """Pages in the dashboard and metrics for Prometheus, of one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    watched : Watched
        What there is to see.

    Notes
    -----
    Bokeh and prometheus_client are imported when the display opens: a scheduler without them, or without a dashboard,
    runs jobs as well.
    """

    def __init__(self, scheduler: Scheduler, watched: Watched):
        self._scheduler = scheduler
        self._watched = watched
        self._closing: list[Callable[[], None]] = []

    def open(self) -> None:
        """Show what can be shown; what cannot is said in the log."""
        for what, show in (("page", self._show_pages), ("metrics", self._show_metrics)):
            try:
                show()
            except ImportError as error:
                logger.info("no %s of elastic jobs: %s", what, error)
            except Exception:  # a scheduler whose dashboard is not as we know it must still run jobs
                logger.exception("no %s of elastic jobs", what)

    def _show_pages(self) -> None:
        if not self._scheduler.http_application.applications:
            return  # neither is there Dask's own dashboard
        from dask_elastic.dashboard.pages import Pages, has_dashboard

        if has_dashboard(self._scheduler):
            pages = Pages(self._scheduler, self._watched)
            pages.open()
            self._closing.append(pages.close)

    def _show_metrics(self) -> None:
        from dask_elastic.dashboard.prometheus import COLLECTOR

        name = self._scheduler.address
        COLLECTOR.add(name, self._watched)
        self._closing.append(lambda: COLLECTOR.remove(name))

    def close(self) -> None:
        """Take everything away again."""
        while self._closing:
            self._closing.pop()()
