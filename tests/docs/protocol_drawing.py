"""The drawings of protocols in the architecture page: moves of shards, homes and groups, a task's life, a job's status.

``python tests/docs/protocol_drawing.py`` writes them into the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from dask_elastic.executor import task_status
from dask_elastic.executor.task_status import TaskStatus
from dask_elastic.migration import group_move, home_move, labelled
from dask_elastic.migration.group_move import GroupAction, GroupPhase
from dask_elastic.migration.home_move import HomeAction, HomePhase
from dask_elastic.migration.labelled import Action, Phase
from dask_elastic.runtime.protocol import job_status
from dask_elastic.runtime.protocol.job_status import Status

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
PLACE = re.compile(r"(<!-- (protocol|home|groups|task|job): made by [^\n]*-->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL)


def diagram(first: str, arrows: Iterable[tuple[str, str, str]], last: Iterable[str]) -> list[str]:
    """Return a Mermaid state diagram from arrows (state, following state, label); equal arrows are drawn once."""
    lines = [f"    {state} --> {following}: {label}" for state, following, label in arrows]
    ends = [f"    {state} --> [*]" for state in last]
    return ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *dict.fromkeys(lines), *ends, "```"]


def move() -> list[str]:
    """Draw the move of a shard, and list its actions."""
    phases = list(Phase)
    arrows = (
        (phase.value, following.value, f"{event.value} / {action.name}")
        for (phase, event, _), (following, action) in sorted(
            labelled.TABLE.items(), key=lambda row: phases.index(row[0][0])
        )
    )
    ends = [phase.value for phase in Phase if phase in labelled.ENDED]
    actions = [f"| `{action.name}` | {action.value} |" for action in Action]
    return [
        *diagram(Phase.REQUESTED.value, arrows, ends), "", "| action | what the executor does |", "|---|---|", *actions
    ]  # fmt: skip


def home() -> list[str]:
    """Draw the move of a home, and list its actions."""
    arrows = (
        (phase.value, following.value, f"{event.value} / {action.name}")
        for (phase, event), (following, action) in home_move.TABLE.items()
    )
    ends = [phase.value for phase in HomePhase if phase in home_move.ENDED]
    actions = [f"| `{action.name}` | {action.value} |" for action in HomeAction]
    table = ["| action | what the old home does |", "|---|---|", *actions]
    return [*diagram(HomePhase.REQUESTED.value, arrows, ends), "", *table]


def groups() -> list[str]:
    """Draw the move of groups under both strategies, and list its actions."""
    arrows = (
        (phase.value, following.value, f"{event.value} / {action.name}")
        for table in group_move.TABLES.values()
        for (phase, event), (following, action) in table.items()
    )
    ends = [phase.value for phase in GroupPhase if phase in group_move.ENDED]
    actions = [f"| `{action.name}` | {action.value} |" for action in GroupAction]
    table = ["| action | what the coordinator asks for |", "|---|---|", *actions]
    return [*diagram(GroupPhase.REQUESTED.value, arrows, ends), "", *table]


def task() -> list[str]:
    """Draw the life of a task."""
    arrows = ((status.value, after.value, event.value) for (status, event), after in task_status.TABLE.items())
    return diagram(TaskStatus.ACTIVE.value, arrows, [TaskStatus.ENDED.value, TaskStatus.LOST.value])


def job() -> list[str]:
    """Draw the status of a job."""
    arrows = ((status.value, after.value, event.value) for (status, event), after in job_status.TABLE.items())
    return diagram(Status.STARTING.value, arrows, [status.value for status in Status if status in job_status.ENDED])


DRAWINGS: dict[str, Callable[[], list[str]]] = {
    "protocol": move,
    "home": home,
    "groups": groups,
    "task": task,
    "job": job,
}


def drawings() -> dict[str, str]:
    """Return what the page is to show, by the name of its place."""
    return {name: "\n" + "\n".join(draw()) + "\n\n" for name, draw in DRAWINGS.items()}


def drawn() -> dict[str, str]:
    """Return what the page shows, by the name of its place."""
    return {found[2]: found[3] for found in PLACE.finditer(PAGE.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    current = drawings()
    page = PLACE.sub(lambda found: found[1] + current[found[2]] + found[4], PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
