"""Hangs the page and the panels into Dask's own dashboard, and takes them out again.

Bokeh serves a fixed set of pages, so ours are an application of their own beside Dask's. Dask lists for JupyterLab what
the first application has: ours goes before Dask's and lists the pages of both.
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

from dask_elastic.dashboard.page import page_document
from dask_elastic.dashboard.panels import PANELS, panel_document

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler

    from dask_elastic.dashboard.watched import Watched

PAGE = "elastic"


class ElasticTornado(DaskBokehTornado):  # type: ignore[misc]
    """Serves our pages, and lists them together with those of other applications.

    Parameters
    ----------
    applications : mapping of str to Application
        Ours, by their paths.
    others : callable
        Returns the applications beside which it stands.
    **options
        For Bokeh.
    """

    def __init__(self, applications: dict[str, Application], others: Callable[[], list[BokehTornado]], **options: Any):
        super().__init__(applications, **options)
        self._others = others

    @property
    def app_paths(self) -> set[str]:
        """Paths of all applications of the server."""
        others = (other.app_paths for other in self._others() if other is not self)
        return set(self.applications).union(*others)


class Pages:
    """Our pages in the dashboard of one scheduler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler, which has a dashboard.
    watched : Watched
        What the pages show.
    """

    def __init__(self, scheduler: Scheduler, watched: Watched):
        self._applications: list[Any] = scheduler.http_application.applications
        self._variables = template_variables(scheduler)
        self._links = [{"url": panel_path(which), "name": f"Elastic {which.title()}"} for which in PANELS]
        prefix = next(app.prefix for app in self._applications if isinstance(app, BokehTornado))
        extra = {"prefix": f"{prefix}/", **self._variables}
        documents: dict[str, Callable[[Document], None]] = {
            f"/{PAGE}": functools.partial(page_document, watched, extra),
            **{f"/{panel_path(which)}": functools.partial(panel_document, which, watched, extra) for which in PANELS},
        }
        options = dict(dask.config.get("distributed.scheduler.dashboard.bokeh-application"))
        origins = create_hosts_allowlist(options.pop("allow_websocket_origin"), scheduler.http_server.port)
        self._application = ElasticTornado(
            {path: Application(FunctionHandler(document)) for path, document in documents.items()},
            others=lambda: [app for app in self._applications if isinstance(app, BokehTornado)],
            prefix=prefix,
            use_index=False,
            extra_websocket_origins=origins,
            absolute_url="",
            **options,
        )

    def open(self) -> None:
        """Serve the pages, and name them in the navigation bar and in JupyterLab's list."""
        self._applications.insert(0, self._application)
        self._application.initialize(IOLoop.current())
        self._application.start()
        # Dask's pages all read these very lists.
        self._variables["pages"].append(PAGE)
        self._variables["plots"].extend(self._links)
        self._variables["plots"].sort(key=lambda plot: plot["name"])

    def close(self) -> None:
        """Serve nothing any more: links vanish, and pages that are open come to rest."""
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
    """Tell whether a scheduler serves Dask's own pages."""
    return any(isinstance(app, BokehTornado) for app in scheduler.http_application.applications)


def panel_path(which: str) -> str:
    """Return the path of a panel; Dask lists those that begin like this for JupyterLab."""
    return f"individual-elastic-{which}"
