"""Panels: single figures that fill their window, for JupyterLab."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from bokeh.models import Column, Div, Model
from distributed.dashboard.components.scheduler import BOKEH_THEME

from dask_elastic.dashboard.chosen_job import ChosenJob
from dask_elastic.dashboard.figures import job_figures
from dask_elastic.dashboard.figures.line_figure import SeriesSource
from dask_elastic.dashboard.figures.time_figure import shared_time_range
from dask_elastic.dashboard.follower import Drawable, Follower
from dask_elastic.dashboard.style_sheet import text_style
from dask_elastic.dashboard.viewer import keep_up_to_date, wanted_job

if TYPE_CHECKING:
    from bokeh.document import Document

    from dask_elastic.dashboard.cluster_view import ClusterView

Made = tuple[Model, list[Drawable]]

FILLS: dict[str, Any] = {"sizing_mode": "stretch_both"}


def _cores() -> Made:
    figure = job_figures.cores_by_executor(shared_time_range(), **FILLS)
    return figure.root, [figure]


def _latency() -> Made:
    series = SeriesSource()
    return job_figures.latency(series.source, shared_time_range(), name="latency", **FILLS).figure, [series]


def _throughput() -> Made:
    series = SeriesSource()
    return job_figures.throughput(series.source, shared_time_range(), name="throughput", **FILLS).figure, [series]


PANELS: dict[str, Callable[[], Made]] = {"cores": _cores, "latency": _latency, "throughput": _throughput}


class Panel:
    """One figure of the newest running job, or of the job named in the URL.

    Parameters
    ----------
    view : ClusterView
        The cluster's jobs.
    make : callable
        Returns the figure's model, and the objects that draw it.
    wanted : str or None
        The job to show first.
    """

    def __init__(self, view: ClusterView, make: Callable[[], Made], wanted: str | None):
        self._view = view
        self._chosen = ChosenJob(wanted)
        self._figure, drawn = make()
        self._follower = Follower(drawn)
        self._caption = Div(sizing_mode="stretch_width", name="caption", stylesheets=text_style())
        self.root = Column(self._caption, self._figure, **FILLS)
        self.update()

    def update(self) -> None:
        """Show the newest values."""
        cards = self._view.cards()
        self._chosen.update({card.name: card.live for card in cards.values()})
        name = self._chosen.name
        job = None if name is None else self._view.job(name)
        self._figure.visible = job is not None
        caption = "No job yet." if name is None else f"Job {escape(name)} ({cards[name].status})"
        if caption != self._caption.text:
            self._caption.text = caption
        if job is not None:
            self._follower.update(self._view.time_series.of(job))


def panel_document(which: str, view: ClusterView, extra: Mapping[str, Any], doc: Document) -> None:
    """Fill a document with one of `PANELS`."""
    panel = Panel(view, PANELS[which], wanted_job(doc))
    doc.add_root(panel.root)
    doc.title = f"Dask: Elastic {which}"
    doc.theme = BOKEH_THEME
    keep_up_to_date(doc, panel.update)
