"""A job as a card for notebooks: its status, its measures beside the target, and a link to the dashboard."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Iterable

from dask.utils import format_time

from dask_elastic.runtime.client.job_view import (
    checkpoint_parts,
    conditions,
    cores_by_operator,
    handed_over,
    in_order,
    measured_latency,
    state_text,
)
from dask_elastic.runtime.protocol.job_description import JobDescription
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.runtime.protocol.remote_errors import error_text
from dask_elastic.runtime.protocol.reports import ExecutorReport

GOOD, BAD, QUIET = "#2f9e77", "#c9513a", "#8a919c"
COLOURS = {Status.RUNNING: GOOD, Status.FINISHED: "#3b82c4", Status.FAILED: BAD}

# Legible in light and dark notebooks: colours of text and background are those of the notebook.
BOX = (
    "font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; max-width: 860px; "
    "padding: 10px 14px; border: 1px solid rgba(128, 128, 128, .4); border-radius: 8px"
)
TILE = "display: inline-block; min-width: 92px; margin: 8px 18px 0 0; vertical-align: top"
SMALL = "font-size: 11px; opacity: .7"
CELL = "text-align: left; padding: 2px 10px 2px 0"

HEAD = ("operator", "home", "cores", "λ /s", "μ /s", "queue", "p50", "p99", "state", "moves")


def card(described: JobDescription, page: str | None, *, executors: bool = True, note: str = "") -> str:
    """Return a job as a card.

    Parameters
    ----------
    described : JobDescription
        The job.
    page : str or None
        The URL of its page on the dashboard.
    executors : bool
        Whether the card has a table of the executors.
    note : str
        A sentence below the measures.

    Returns
    -------
    str
        An HTML element.
    """
    notes = [note, *(handed_over(one, described.live) for one in described.handoffs if one.epochs)]
    notes += [", ".join(checkpoint_parts(described))]
    notes += _warnings(described)
    lines = "".join(f"<div style='margin-top: 6px'>{html.escape(line)}</div>" for line in notes if line)
    table = _table(described) if executors and described.executors else ""
    return f'<div style="{BOX}">{_title(described, page)}{_tiles(described)}{lines}{table}</div>'


def _title(described: JobDescription, page: str | None) -> str:
    colour = COLOURS.get(described.status, QUIET)
    took = (described.ended or time.time()) - described.began
    name = f"<strong>{html.escape(described.name)}: {described.status.value}</strong>"
    link = "" if page is None else f" · <a href='{html.escape(page, quote=True)}' target='_blank'>dashboard</a>"
    return f"<div><span style='color: {colour}'>●</span> {name} · {took:,.0f} s{link}</div>"


def _tiles(described: JobDescription) -> str:
    mean, target = described.control.measured, described.latency_target
    _, high = measured_latency(described)
    held = sum(measure.cores for measure in described.executors)
    tiles = [
        _tile("target", "none" if target is None else format_time(target), "mean latency"),
        _tile("latency", _seconds(mean), f"p99 {_seconds(high)}", _verdict(mean, target)),
        _tile("rows/s", f"{described.source_rate:,.0f}" if described.live else "–", f"{described.rows_read:,} rows"),
        _tile("cores", str(held), ", ".join(cores_by_operator(described.executors))),
        _tile("waiting", f"{sum(measure.queue for measure in described.executors):,}", "rows in queues"),
        _tile("state", state_text(described.executors), _moves(described.executors)),
    ]
    return f"<div>{''.join(tiles)}</div>"


def _tile(label: str, value: str, note: str, colour: str | None = None) -> str:
    look = "" if colour is None else f"; color: {colour}"
    return (
        f"<div style='{TILE}'><div style='{SMALL}'>{html.escape(label)}</div>"
        f"<div style='font-size: 17px; font-weight: 600{look}'>{html.escape(value)}</div>"
        f"<div style='{SMALL}'>{html.escape(note)}</div></div>"
    )


def _verdict(mean: float | None, target: float | None) -> str | None:
    """Return the colour of a latency: whether it meets the target."""
    if mean is None or target is None:
        return None
    return GOOD if mean <= target else BAD


def _seconds(value: float | None) -> str:
    return format_time(value) if value is not None and math.isfinite(value) else "–"


def _moves(executors: Iterable[ExecutorReport]) -> str:
    return f"{sum(measure.moves for measure in executors):,} shard moves"


def _warnings(described: JobDescription) -> list[str]:
    found = conditions(described)
    found += [f"{rows:,} dead letters of {operator}" for operator, rows in described.dead_letters.items() if rows]
    found += [f"failed: {error_text(described.error)}"] if described.error is not None else []
    return found


def _table(described: JobDescription) -> str:
    head = "".join(f"<th style='{CELL}'>{name}</th>" for name in HEAD)
    rows = "".join(_row(described, measure) for measure in in_order(described))
    look = "margin-top: 10px; font: inherit; color: inherit"
    return f"<table style='{look}'><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(described: JobDescription, measure: ExecutorReport) -> str:
    cells = (
        f"{measure.operator}[{measure.executor}]",
        described.nodes[measure.node],
        str(measure.cores),
        f"{measure.arrival_rate:,.0f}",
        "–" if measure.service_rate is None else f"{measure.service_rate:,.0f}",
        f"{measure.queue:,}",
        _seconds(measure.latency_p50),
        _seconds(measure.latency_p99),
        state_text([measure]),
        f"{measure.moves} ({measure.moves_across} across nodes)",
    )
    return "<tr>" + "".join(f"<td style='{CELL}'>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
