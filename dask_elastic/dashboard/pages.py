"""Adds the page and the panels to Dask's dashboard, and removes them.

A Bokeh application serves a fixed set of pages, so these pages are a second application beside Dask's. For JupyterLab,
Dask lists only the pages of the first application; so this one is inserted first and lists the pages of both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dask.config
from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.server.tornado import BokehTornado
from bokeh.server.util import create_hosts_allowlist
from distributed.dashboard.core import DaskBokehTornado
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from dask_elastic.dashboard.error_page import page_or_error
from dask_elastic.dashboard.page import page_document
from dask_elastic.dashboard.panels import PANELS, panel_document

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler

    from dask_elastic.dashboard.cluster_view import ClusterView

PAGE = "elastic"


class ElasticTornado(DaskBokehTornado):  # type: ignore[misc]
    """Serves the elastic pages, and lists them together with those of the other applications.

    Parameters
    ----------
    applications : mapping of str to Application
        The elastic pages, by path.
    others : callable
        Returns all Bokeh applications of the server.
    **options
        For Bokeh.
    """

    def __init__(self, applications: dict[str, Application], others: Callable[[], list[BokehTornado]], **options: Any):
        super().__init__(applications, **options)
        self._others = others

    @property
    def app_paths(self) -> set[str]:
        """The paths of all applications of the server."""
        others = (other.app_paths for other in self._others() if other is not self)
        return set(self.applications).union(*others)


class Pages:
    """The elastic pages in the dashboard of one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        A scheduler with a dashboard.
    view : ClusterView
        The cluster's jobs.
    """

    def __init__(self, scheduler: Scheduler, view: ClusterView):
        self._applications: list[Any] = scheduler.http_application.applications
        self._variables = template_variables(scheduler)
        self._links = [{"url": panel_path(which), "name": f"Elastic {which.title()}"} for which in PANELS]
        # The only hook by which every page of Dask, Status too, can say something about its task stream.
        self._links.append({"url": f"{PAGE}#task-stream", "name": "Elastic: Why Is the Task Stream Empty?"})
        prefix = next(app.prefix for app in self._applications if isinstance(app, BokehTornado))
        extra = {"prefix": f"{prefix}/", **self._variables}
        documents: dict[str, Callable[[Document], None]] = {
            f"/{PAGE}": functools.partial(page_document, view, extra),
            **{f"/{panel_path(which)}": functools.partial(panel_document, which, view, extra) for which in PANELS},
        }
        options = dict(dask.config.get("distributed.scheduler.dashboard.bokeh-application"))
        origins = create_hosts_allowlist(options.pop("allow_websocket_origin"), scheduler.http_server.port)
        self._application = ElasticTornado(
            {path: Application(FunctionHandler(page_or_error(path, fill))) for path, fill in documents.items()},
            others=lambda: [app for app in self._applications if isinstance(app, BokehTornado)],
            prefix=prefix,
            use_index=False,
            extra_websocket_origins=origins,
            absolute_url="",
            **options,
        )

    def open(self) -> None:
        """Serve the pages, and add them to the navigation bar and to JupyterLab's list."""
        self._applications.insert(0, self._application)
        self._application.initialize(IOLoop.current())
        self._application.start()
        # All pages of Dask read these two lists.
        self._variables["pages"].append(PAGE)
        self._variables["plots"].extend(self._links)
        self._variables["plots"].sort(key=lambda plot: plot["name"])

    def close(self) -> None:
        """Stop serving the pages, remove their links, and stop updating pages that are open."""
        if self._application not in self._applications:
            return
        self._applications.remove(self._application)
        self._variables["pages"].remove(PAGE)
        for link in self._links:
            self._variables["plots"].remove(link)
        for context in self._application.applications.values():
            for session in context.sessions:
                for callback in session.document.session_callbacks:
                    session.document.remove_periodic_callback(callback)
        self._application.stop()


def has_dashboard(scheduler: Scheduler) -> bool:
    """Return whether a scheduler serves Dask's dashboard."""
    return any(isinstance(app, BokehTornado) for app in scheduler.http_application.applications)


def panel_path(which: str) -> str:
    """Return the path of a panel; Dask lists paths with this prefix for JupyterLab."""
    return f"individual-elastic-{which}"
