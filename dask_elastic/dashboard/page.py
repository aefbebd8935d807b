"""The /elastic page: one job's values, figures and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bokeh.models import Div, Model, Select
from distributed.dashboard.components.scheduler import BOKEH_THEME, env

from dask_elastic.dashboard.checkpoints.table import CheckpointsTable
from dask_elastic.dashboard.chosen_job import ChosenJob
from dask_elastic.dashboard.conditions import conditions
from dask_elastic.dashboard.decisions_table import DecisionsTable
from dask_elastic.dashboard.figures import job_figures
from dask_elastic.dashboard.figures.line_figure import SeriesSource
from dask_elastic.dashboard.figures.time_figure import shared_time_range
from dask_elastic.dashboard.follower import Follower
from dask_elastic.dashboard.handoffs_table import HandoffsTable
from dask_elastic.dashboard.headline import WELCOME, Headline
from dask_elastic.dashboard.operator_graph import OperatorGraph
from dask_elastic.dashboard.operators_table import OperatorsTable
from dask_elastic.dashboard.overview_table import JobOverview, OverviewTable, overview
from dask_elastic.dashboard.style_sheet import field_style, text_style
from dask_elastic.dashboard.viewer import keep_up_to_date, wanted_job
from dask_elastic.dashboard.workers.links import WorkerLinks
from dask_elastic.dashboard.workers.placement_table import PlacementTable

if TYPE_CHECKING:
    from bokeh.document import Document

    from dask_elastic.dashboard.cluster_view import ClusterView

TALL, LOW = 240, 160


class ElasticPage:
    """The content of the page for one viewer.

    Parameters
    ----------
    view : ClusterView
        The cluster's jobs.
    wanted : str or None
        The job to show first; by default one in trouble, else the newest running job.
    """

    def __init__(self, view: ClusterView, wanted: str | None = None):
        self._view = view
        self._chosen = ChosenJob(wanted)
        self.welcome = Div(text=WELCOME, name="welcome", sizing_mode="stretch_width", stylesheets=text_style())
        self.select = Select(name="job", width=320, options=[], value="", stylesheets=field_style())
        self.select.on_change("value", self._picked)
        self.overview = OverviewTable()
        self.headline = Headline()
        self.graph = OperatorGraph()
        self.workers = WorkerLinks()
        self.placement = PlacementTable()
        self.handoffs = HandoffsTable()
        self.operators = OperatorsTable()
        self.decisions = DecisionsTable()
        self.checkpoints = CheckpointsTable()
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
            job_figures.lag(series.source, x_range, name="lag", **low),
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
        tables = [self.overview.root, self.handoffs.root, self.operators.root, self.decisions.root]
        texts = [self.headline.root, self.graph.root, self.workers.root, self.placement.root]
        return [self.welcome, self.select, *tables, self.checkpoints.root, *texts, *self.figures]

    def update(self) -> None:
        """Show the newest values."""
        jobs = overview(self._view)
        self._chosen.update({one.card.name: bool(one.card.live or one.severity) for one in jobs.values()})
        name = self._chosen.name
        self._offer(jobs)
        job = None if name is None else jobs[name].job
        self._show(known=name is not None, measured=job is not None)
        if name is None:
            self.handoffs.update((), live=False)
            self.checkpoints.update(None)
            return
        decisions = [] if job is None else self._view.decisions(job)
        shown = jobs[name]
        found = conditions(shown.card, job, shown.flow, self._view.problem())
        self.headline.update(shown.card, job, decisions, found, shown.flow.lag)
        self.graph.update(shown.flow)
        self.handoffs.update(shown.card.handoffs(), shown.card.live)
        self.operators.update(job)
        self.placement.update(job)
        self.decisions.update(decisions)
        self.checkpoints.update(shown.card.checkpoints())
        if job is not None:
            series = self._view.time_series.of(job)
            self._follower.update(series)
            self.workers.update(series.nodes)

    def _offer(self, jobs: Mapping[str, JobOverview]) -> None:
        self.overview.update(list(jobs.values()), self._chosen.name)
        options = [(one.card.name, self._label(one)) for one in jobs.values()]
        if options != self.select.options:
            self.select.options = options
        if self._chosen.name is not None and self.select.value != self._chosen.name:
            self.select.value = self._chosen.name

    def _label(self, one: JobOverview) -> str:
        starved = ", starved" if one.card.live and one.job is not None and one.job.starved else ""
        return f"{one.card.name} ({one.card.status}{starved})"

    def _show(self, known: bool, measured: bool) -> None:
        measures = [self.workers.root, self.placement.root, self.operators.root, self.decisions.root]
        wanted = dict.fromkeys([*self.figures, *measures], measured)
        # With one job there is nothing to select.
        wanted |= {self.select: len(self.select.options) > 1, self.welcome: not known, self.overview.root: known}
        wanted |= {self.headline.root: known, self.graph.root: known}
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
    # Bokeh would look through all roots again for each one.
    with doc.models.freeze():
        for root in page.roots:
            doc.add_root(root)
    doc.title = "Dask: Elastic"
    doc.template = env.from_string(Path(__file__).with_name("elastic.html").read_text(encoding="utf-8"))
    doc.template_variables.update(extra)
    doc.theme = BOKEH_THEME
    keep_up_to_date(doc, page.update)
