"""The /elastic page: one job's values, figures and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bokeh.models import Div, Model, Select
from distributed.dashboard.components.scheduler import BOKEH_THEME, env

from dask_elastic.dashboard import job_figures
from dask_elastic.dashboard.chosen_job import ChosenJob
from dask_elastic.dashboard.decisions_table import DecisionsTable
from dask_elastic.dashboard.follower import Follower
from dask_elastic.dashboard.handoffs_table import HandoffsTable
from dask_elastic.dashboard.headline import WELCOME, Headline
from dask_elastic.dashboard.line_figure import SeriesSource
from dask_elastic.dashboard.operators_table import OperatorsTable
from dask_elastic.dashboard.style_sheet import text_style
from dask_elastic.dashboard.time_figure import shared_time_range
from dask_elastic.dashboard.viewer import keep_up_to_date, wanted_job

if TYPE_CHECKING:
    from bokeh.document import Document

    from dask_elastic.dashboard.cluster_view import ClusterView, JobCard

TALL, LOW = 240, 160


class ElasticPage:
    """The content of the page for one viewer.

    Parameters
    ----------
    view : ClusterView
        The cluster's jobs.
    wanted : str or None
        The job to show first; by default the newest running job.
    """

    def __init__(self, view: ClusterView, wanted: str | None = None):
        self._view = view
        self._chosen = ChosenJob(wanted)
        self.welcome = Div(text=WELCOME, name="welcome", sizing_mode="stretch_width", stylesheets=text_style())
        self.select = Select(name="job", width=320, options=[], value="")
        self.select.on_change("value", self._picked)
        self.headline = Headline()
        self.handoffs = HandoffsTable()
        self.operators = OperatorsTable()
        self.decisions = DecisionsTable()
        self.figures = self._make_figures()
        self.update()

    def _make_figures(self) -> list[Model]:
        series = SeriesSource()
        x_range = shared_time_range()
        tall: dict[str, Any] = {"height": TALL, "sizing_mode": "stretch_width"}
        low: dict[str, Any] = {"height": LOW, "sizing_mode": "stretch_width"}
        executors = job_figures.cores_by_executor(x_range, **tall)
        nodes = job_figures.cores_by_node(x_range, **tall)
        lines = [
            job_figures.latency(series.source, x_range, name="latency", **tall),
            job_figures.throughput(series.source, x_range, name="throughput", **tall),
            job_figures.queue(series.source, x_range, name="queue", **low),
            job_figures.state(series.source, x_range, name="state", **low),
            job_figures.moves(series.source, x_range, name="moves", **low),
        ]
        for figure in lines[:2]:
            figure.mark(self.decisions.marks)
        self._follower = Follower([series, executors, nodes])
        return [executors.root, nodes.root, *(figure.figure for figure in lines)]

    @property
    def roots(self) -> list[Model]:
        """The models that the template places."""
        texts = [self.headline.root, self.handoffs.root, self.operators.root, self.decisions.root]
        return [self.welcome, self.select, *texts, *self.figures]

    def update(self) -> None:
        """Show the newest values."""
        cards = self._view.cards()
        self._chosen.update(cards)
        name = self._chosen.name
        self._offer(cards)
        job = None if name is None else self._view.job(name)
        self._show(known=name is not None, measured=job is not None)
        if name is None:
            self.handoffs.update((), live=False)
            return
        decisions = [] if job is None else self._view.decisions(job)
        self.headline.update(cards[name], job, decisions, self._view.problem())
        self.handoffs.update(cards[name].handoffs(), cards[name].live)
        self.operators.update(job)
        self.decisions.update(decisions)
        if job is not None:
            self._follower.update(self._view.time_series.of(job))

    def _offer(self, cards: Mapping[str, JobCard]) -> None:
        options = [(card.name, self._label(card)) for card in cards.values()]
        if options != self.select.options:
            self.select.options = options
        if self._chosen.name is not None and self.select.value != self._chosen.name:
            self.select.value = self._chosen.name

    def _label(self, card: JobCard) -> str:
        job = self._view.job(card.name)
        starved = ", starved" if card.live and job is not None and job.starved else ""
        return f"{card.name} ({card.status}{starved})"

    def _show(self, known: bool, measured: bool) -> None:
        wanted = dict.fromkeys([*self.figures, self.operators.root, self.decisions.root], measured)
        wanted |= {self.welcome: not known, self.select: known, self.headline.root: known}
        for model, visible in wanted.items():
            if model.visible != visible:
                model.visible = visible

    def _picked(self, attribute: str, old: str, new: str) -> None:
        if new and new != self._chosen.name:
            self._chosen.pick(new)
            self.update()


def page_document(view: ClusterView, extra: Mapping[str, Any], doc: Document) -> None:
    """Fill a document with the page.

    Parameters
    ----------
    view : ClusterView
        The cluster's jobs.
    extra : mapping
        Variables of Dask's template.
    doc : Document
        The document of one viewer.
    """
    page = ElasticPage(view, wanted_job(doc))
    for root in page.roots:
        doc.add_root(root)
    doc.title = "Dask: Elastic"
    doc.template = env.from_string(Path(__file__).with_name("elastic.html").read_text(encoding="utf-8"))
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME
    keep_up_to_date(doc, page.update)
