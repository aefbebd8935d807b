"""The table of all jobs, those in trouble first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from bokeh.models import Div

from dask_elastic.dashboard.conditions import HINT, SEVERITIES, Condition, conditions
from dask_elastic.dashboard.quantities import UNKNOWN, count, duration, plural, rate
from dask_elastic.dashboard.style_sheet import text_style

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory
    from dask_elastic.control.job_flow import JobFlow
    from dask_elastic.dashboard.cluster_view import ClusterView, JobCard

SHOWN = 100
"""Number of jobs in the table; those in trouble come first."""

HEAD = """<h2>Jobs, those in trouble first</h2><div class="scroll jobs"><table><tr>
<th>job</th><th>status</th><th>trouble</th><th class="number">mean latency</th><th class="number">target</th>
<th class="number">rows read</th><th class="number">lag</th><th class="number">cores</th>
<th class="number">dead letters</th><th>last error</th></tr>"""


@dataclass(frozen=True)
class JobOverview:
    """A job with all that tells whether it is in trouble.

    Parameters
    ----------
    card : JobCard
        The job's status.
    job : JobHistory or None
        The job's measures.
    flow : JobFlow
        The flow of rows through it.
    conditions : tuple of Condition
        Its conditions, the worst first. The control loop's error is left out: it concerns all jobs alike.
    """

    card: JobCard
    job: JobHistory | None
    flow: JobFlow
    conditions: tuple[Condition, ...]

    @property
    def severity(self) -> int:
        """The place of its worst condition in `SEVERITIES`; 0 without trouble."""
        return SEVERITIES.index(self.conditions[0].severity) if self.conditions else 0


def overview(view: ClusterView) -> dict[str, JobOverview]:
    """Return all jobs by name: those in trouble first, then running ones, each group from newest to oldest.

    Parameters
    ----------
    view : ClusterView
        The cluster's jobs.
    """
    found = []
    for card in view.cards().values():
        job, flow = view.job(card.name), card.flow()
        found.append(JobOverview(card, job, flow, tuple(conditions(card, job, flow))))
    found.sort(key=lambda one: (one.severity, one.card.live, one.card.began), reverse=True)
    return {one.card.name: one for one in found}


class OverviewTable:
    """One row per job, with a link that shows the job on the page."""

    def __init__(self) -> None:
        self.root = Div(name="overview", sizing_mode="stretch_width", stylesheets=text_style())

    def update(self, jobs: Sequence[JobOverview], shown: str | None) -> None:
        """Show the newest values.

        Parameters
        ----------
        jobs : sequence of JobOverview
            The jobs, in order.
        shown : str or None
            The job that the page shows.
        """
        rows = "".join(_row(one, one.card.name == shown) for one in jobs[:SHOWN])
        more = f'<p class="empty">and {plural(len(jobs) - SHOWN, "more job")}</p>' if len(jobs) > SHOWN else ""
        text = f"{HEAD}{rows}</table>{more}</div>" if jobs else ""
        if text != self.root.text:
            self.root.text = text


def _row(one: JobOverview, shown: bool) -> str:
    card, job = one.card, one.job
    latest = None if job is None else job.latest()
    known = latest if card.live else None
    labels = dict.fromkeys((each.label, each.severity) for each in one.conditions if each.severity != HINT)
    badges = "".join(f'<span class="badge {severity}">{escape(label)}</span>' for label, severity in labels)
    numbers = (
        UNKNOWN if known is None else duration(known.latency),
        _target(card, job),
        UNKNOWN if known is None else rate(known.source_rate),
        duration(one.flow.lag),
        UNKNOWN if known is None else count(sum(each.total_cores for each in known.executors)),
        count(sum(one.flow.dead_letters.values())),
    )
    cells = "".join(f'<td class="number">{number}</td>' for number in numbers)
    link = f'<a href="elastic?job={quote(card.name, safe="")}">{escape(card.name)}</a>'
    look = ' class="shown"' if shown else ""
    error = escape((card.error or UNKNOWN).splitlines()[0])
    return (
        f'<tr{look}><td class="job">{link}</td><td>{card.status}</td><td>{badges or UNKNOWN}</td>{cells}'
        f'<td class="error" title="{escape(card.error or "")}">{error}</td></tr>'
    )


def _target(card: JobCard, job: JobHistory | None) -> str:
    """Return the target, marked by whether the latency in the cell before meets it."""
    latest = None if job is None else job.latest()
    if latest is None or latest.latency_target is None:
        return UNKNOWN
    target = duration(latest.latency_target)
    if not card.live or latest.latency is None:
        return target
    return f"{target} {'✓' if latest.latency <= latest.latency_target else '✗'}"
