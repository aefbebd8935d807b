"""The top of the page: the job's newest values, and notices about its conditions."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from bokeh.models import Div

from dask_elastic.dashboard.conditions import Condition
from dask_elastic.dashboard.figures.time_figure import CLOCK
from dask_elastic.dashboard.quantities import count, duration, plural, rate, size
from dask_elastic.dashboard.style_sheet import text_style
from dask_elastic.dashboard.wording import changes_in_words

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory
    from dask_elastic.dashboard.cluster_view import JobCard
    from dask_elastic.vocab.plan import Decision

WELCOME = """
<div class="welcome"><h1>No job yet</h1>
<p>Cores, latency, throughput and decisions of your streaming jobs appear here as soon as one runs. Submit one:</p>
<pre>import dask_elastic as de
from dask_elastic import aggregate as agg

topology = de.Topology("word-count")
words = topology.source("words", de.sources.Arrow(table, rate=10_000))
words.key_by("word").compute({"count": agg.Count()}, name="per_word")

job = de.submit(topology, client, latency_target="50ms")</pre>
<p>The control loop chooses cores for the job's <code>latency_target</code>: an operator with a backlog gets more cores,
one with too many releases some. <code>job.decisions()</code> lists the reasons.</p></div>
"""


class Headline:
    """Tiles with the newest values, and below them notices and the newest decision."""

    def __init__(self) -> None:
        self.root = Div(name="headline", sizing_mode="stretch_width", stylesheets=text_style())

    def update(
        self,
        card: JobCard,
        job: JobHistory | None,
        decisions: Sequence[Decision],
        conditions: Sequence[Condition],
        lag: float | None = None,
    ) -> None:
        """Show the state of a job.

        Parameters
        ----------
        card : JobCard
            The job's status.
        job : JobHistory or None
            The job's measures; None before the first one.
        decisions : sequence of Decision
            The decisions about the job, newest last.
        conditions : sequence of Condition
            The conditions of the job.
        lag : float or None
            The largest lag of its sources.
        """
        tiles = _tiles(card, job, lag) if job is not None else ""
        absent = "This job has no measures yet." if card.live else "This job ended before it was measured."
        unmeasured = "" if job is not None else f'<p class="empty">{absent}</p>'
        notices = [f'<p class="condition {one.severity}">{escape(one.sentence)}</p>' for one in conditions]
        text = f'<div class="tiles">{tiles}</div>{unmeasured}{"".join(notices)}{_newest(decisions)}'
        if text != self.root.text:
            self.root.text = text


def _tiles(card: JobCard, job: JobHistory, lag: float | None) -> str:
    newest = {name: _last(job.series(name)) for name in ("throughput", "predicted", "cores", "queue", "moves")}
    latest = job.latest()
    nodes = len({node for executor in latest.executors for node in executor.cores})
    executors = len(latest.executors)
    where = f"{plural(executors, 'executor')}, {plural(nodes, 'node')}"
    latency_look, latency_note = _against_target(latest.latency, latest.latency_target)
    return "".join(
        [
            _tile("Cores" if card.live else "Cores at the end", count(newest["cores"]), where),
            _tile("Throughput", rate(newest["throughput"]), "rows that sources read"),
            _tile("Mean latency", duration(latest.latency), latency_note, latency_look),
            _tile("Latency p99", duration(latest.latency_p99), "end to end"),
            _tile("Predicted latency", duration(newest["predicted"]), _expectation(newest["predicted"])),
            _tile("Source lag", duration(lag), "behind due rows"),
            _tile("Waiting tuples", count(newest["queue"]), "in queues of executors"),
            _tile("State", size(_last(job.series("state_bytes"))), "in all executors"),
            _tile("Shard moves", count(newest["moves"]), "at the present homes"),
        ]
    )


def _newest(decisions: Sequence[Decision]) -> str:
    """Format the newest decision in one line; the table below has all of them."""
    if not decisions:
        return ""
    newest = decisions[-1]
    words = changes_in_words(newest)[:1] if newest.changes else []
    if len(newest.changes) > 1:
        words.append(f"and {len(newest.changes) - 1} more")
    text = " · ".join(filter(None, (", ".join(words), newest.reason)))
    moment = time.strftime(CLOCK, time.localtime(newest.time))
    return f'<p class="newest"><b>{moment}</b> {escape(text)}</p>'


def _tile(label: str, value: str, note: str, look: str = "") -> str:
    return (
        f'<div class="tile {look}"><div class="label">{escape(label)}</div>'
        f'<div class="value">{escape(value)}</div><div class="note">{escape(note)}</div></div>'
    )


def _against_target(latency: float | None, target: float | None) -> tuple[str, str]:
    if target is None:
        return "", "no target"
    if latency is None or not math.isfinite(latency):
        return "", f"target {duration(target)}"
    return ("good", f"within {duration(target)}") if latency <= target else ("missed", f"above {duration(target)}")


def _expectation(predicted: float | None) -> str:
    return "model: queues grow" if predicted == math.inf else "mean, by the model"


def _last(values: list[float]) -> float | None:
    return values[-1] if values else None
