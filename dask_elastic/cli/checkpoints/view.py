"""Checkpoints on the console: a few lines in the status of a job, and the table of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dask_elastic.cli.terminal.console_table import Cell, ConsoleTable
from dask_elastic.cli.terminal.quantities import clock, count, duration, size
from dask_elastic.runtime.client.checkpoint_text import given_up, newest_checkpoint, restarted
from dask_elastic.vocab.checkpoint import CheckpointDescription, CheckpointStatus

if TYPE_CHECKING:
    from dask_elastic.cli.terminal.console import Shown

HEAD = ("checkpoint", "began", "took", "written", "held", "error")


def checkpoint_lines(values: Mapping[str, Any]) -> list[Shown]:
    """Return the lines about checkpoints in the status of a job.

    Parameters
    ----------
    values : mapping
        The fields of its `CheckpointStatus`, as JSON has them.
    """
    complete, failed = (_description(values[name]) for name in ("complete", "given_up"))
    status = CheckpointStatus(**{**values, "complete": complete, "given_up": failed})
    texts = [newest_checkpoint(status)]
    if complete is not None:
        texts.append(f"{size(complete.nbytes)} written in {duration(complete.seconds)}")
    texts += [text for text in (restarted(status),) if text]
    lines: list[Shown] = [f"Checkpoints in {status.url}: {', '.join(texts)}"]
    if failed is not None:
        text = f"Checkpoints given up: {count(status.given_up_count)}; at {clock(failed.began)}, {given_up(failed)}"
        lines.append((text, "yellow" if status.failing else ""))
    return lines


def _description(values: Mapping[str, Any] | None) -> CheckpointDescription | None:
    return None if values is None else CheckpointDescription(**values)


def checkpoint_table(taken: Sequence[CheckpointDescription]) -> ConsoleTable:
    """Return a table with a row for each checkpoint."""
    return ConsoleTable(HEAD, [*map(_row, taken)], left=frozenset({"error"}), optional=("held", "written"))


def _row(taken: CheckpointDescription) -> list[Cell]:
    failed = taken.error is not None
    return [
        (count(taken.number), "bold"),
        clock(taken.began),
        duration(taken.seconds),
        "" if failed else size(taken.nbytes),
        "" if failed else duration(taken.held),
        ((taken.error or "").strip().partition("\n")[0], "red"),
    ]
