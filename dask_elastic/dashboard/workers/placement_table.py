"""The table of where a job's executors are, and below it the key groups that exchange most."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from bokeh.models import Div

from dask_elastic.control.placement.group_map import GroupMap, GroupPair
from dask_elastic.dashboard.colors import executor_colors
from dask_elastic.dashboard.quantities import UNKNOWN, count, plural, size
from dask_elastic.dashboard.style_sheet import text_style
from dask_elastic.dashboard.workers.links import short_address, worker_page
from dask_elastic.dashboard.workers.placement import Placed, placed
from dask_elastic.vocab.group_flow import GroupFlow
from dask_elastic.vocab.snapshot import JobSnapshot

if TYPE_CHECKING:
    from dask_elastic.control.history import JobHistory

ROWS = 24
"""Largest number of rows, those with the most load; `job.explain()` has all executors."""

PAIRS = 8
"""Number of pairs of key groups; `job.explain()` has those of each group."""

HEAD = ("executors", "busy cores", "state", "input", "from its worker")
GROUPS_HEAD = ("key groups", "between groups", "within its worker")
PAIRS_HEAD = ("from", "worker", "to", "worker")


class PlacementTable:
    """One row for each operator and worker; of a job whose key groups move, also the groups that exchange most."""

    def __init__(self) -> None:
        self.root = Div(name="placement", sizing_mode="stretch_width", stylesheets=text_style())

    def update(self, job: JobHistory | None) -> None:
        """Show where the executors of a job are."""
        text = "" if job is None else _tables(job.latest(), job.addresses, tuple(job.flows.items()))
        if text != self.root.text:
            self.root.text = text


@functools.lru_cache(maxsize=8)
def _tables(job: JobSnapshot, addresses: tuple[str, ...], flows: tuple[tuple[str, tuple[GroupFlow, ...]], ...]) -> str:
    """Format the tables; cached, because all viewers show the same ones."""
    groups = GroupMap.of(job, dict(flows))
    parts = placed(job, addresses, groups)
    if not parts:
        return ""
    return _where(parts, bool(groups.operators)) + (_between(groups, addresses) if groups.operators else "")


def _where(parts: Sequence[Placed], with_groups: bool) -> str:
    operators = list(dict.fromkeys(part.operator for part in parts))
    colors = dict(zip(operators, executor_colors(operators), strict=True))
    heaviest = sorted(parts, key=lambda part: part.load, reverse=True)[:ROWS]
    shown = {id(part) for part in heaviest}
    names = [*HEAD, *(GROUPS_HEAD if with_groups else ())]
    head = "".join(f'<th class="number">{name}</th>' for name in names)
    rows = "".join(_row(part, colors[part.operator], with_groups) for part in parts if id(part) in shown)
    more = len(parts) - len(heaviest)
    rest = f'<p class="empty">and {plural(more, "more row")} with less load</p>' if more else ""
    return (
        '<h2>Where executors are</h2><div class="scroll"><table>'
        f"<tr><th>operator</th><th>worker</th>{head}</tr>{rows}</table>{rest}</div>"
    )


def _row(part: Placed, color: str, with_groups: bool) -> str:
    cells = [
        count(len(part.executors)),
        f"{part.load:.2f}",
        size(part.state_bytes),
        *_amount_and_share(part.received, part.local),
    ]
    if with_groups:
        cells += [count(part.groups), *_amount_and_share(part.exchanged, part.within)]
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    swatch = f'<span class="swatch" style="background: {color}"></span>'
    return f"<tr><td>{swatch}{escape(part.operator)}</td><td>{_worker(part.worker)}</td>{numbers}</tr>"


def _between(groups: GroupMap, addresses: Sequence[str]) -> str:
    """Return what operators with key groups send to each other, and the pairs of groups with the most of it."""
    if not groups.traffic:
        return '<p class="empty">No traffic between key groups has been sampled.</p>'
    totals = "; ".join(
        f"{escape(one.sender)} → {escape(one.receiver)}: "
        f"{_share(one.share_within)} of {size(one.total)}/s within workers"
        for one in groups.traffic
        if one.total > 0
    )
    head = "".join(f"<th>{name}</th>" for name in PAIRS_HEAD)
    rows = "".join(_pair(pair, groups, addresses) for pair in groups.heaviest(PAIRS))
    table = f'<table><tr>{head}<th class="number">traffic</th><th></th></tr>{rows}</table>' if rows else ""
    return f'<h2>Traffic between key groups</h2><p class="empty">{totals}</p><div class="scroll">{table}</div>'


def _pair(pair: GroupPair, groups: GroupMap, addresses: Sequence[str]) -> str:
    cells = ""
    for name, group in ((pair.sender, pair.source), (pair.receiver, pair.target)):
        owner = groups.operators[name].executor(group)
        cells += f"<td>group {group} of {escape(str(owner.executor))}</td><td>{_worker(addresses[owner.home])}</td>"
    where = "" if pair.within else '<span class="badge">between workers</span>'
    return f'<tr>{cells}<td class="number">{size(pair.rate)}/s</td><td>{where}</td></tr>'


def _worker(address: str) -> str:
    return f'<a href="{worker_page(address)}">{escape(short_address(address))}</a>'


def _amount_and_share(total: float, part: float) -> tuple[str, str]:
    return (f"{size(total)}/s", _share(part / total)) if total > 0 else (UNKNOWN, UNKNOWN)


def _share(share: float) -> str:
    return f"{share:.0%}"
