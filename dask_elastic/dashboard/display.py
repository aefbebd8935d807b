"""The scheduler's dashboard pages and Prometheus metrics, as far as the installed libraries allow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Scheduler

    from dask_elastic.dashboard.cluster_view import ClusterView

logger = logging.getLogger("dask_elastic.scheduler")


class Display:
    """The dashboard pages and Prometheus metrics of one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    view : ClusterView
        The cluster's jobs.

    Notes
    -----
    Bokeh and prometheus_client are imported when the display opens: a scheduler without them, or without a dashboard,
    can still run jobs.
    """

    def __init__(self, scheduler: Scheduler, view: ClusterView):
        self._scheduler = scheduler
        self._view = view
        self._closing: list[Callable[[], None]] = []

    def open(self) -> None:
        """Open the pages and the metrics; log those that cannot be opened."""
        for what, show in (("page", self._show_pages), ("metrics", self._show_metrics)):
            try:
                show()
            except ImportError as error:
                logger.info("The scheduler serves no %s of elastic jobs: %s", what, error)
            except Exception:  # an incompatible version of the dashboard must not stop the scheduler from running jobs
                logger.exception("The scheduler serves no %s of elastic jobs because of an error", what)

    def _show_pages(self) -> None:
        if not self._scheduler.http_application.applications:
            return  # the scheduler serves no dashboard
        from dask_elastic.dashboard.pages import Pages, has_dashboard

        if has_dashboard(self._scheduler):
            pages = Pages(self._scheduler, self._view)
            pages.open()
            self._closing.append(pages.close)

    def _show_metrics(self) -> None:
        from dask_elastic.dashboard.prometheus import COLLECTOR

        name = self._scheduler.address
        COLLECTOR.add(name, self._view)
        self._closing.append(lambda: COLLECTOR.remove(name))

    def close(self) -> None:
        """Remove the pages and the metrics."""
        while self._closing:
            self._closing.pop()()
