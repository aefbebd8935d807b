"""Views of jobs on the console: a table of all, or one in detail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_elastic.cli.checkpoints.view import checkpoint_lines
from dask_elastic.cli.terminal.console_table import Cell, ConsoleTable
from dask_elastic.cli.terminal.quantities import clock, count, duration, size
from dask_elastic.runtime.client.job_view import handed_over
from dask_elastic.runtime.protocol.job_spec import ELASTIC
from dask_elastic.runtime.protocol.job_status import Status
from dask_elastic.vocab.counted import counted
from dask_elastic.vocab.epoch import HandoffProgress

if TYPE_CHECKING:
    from dask_elastic.cli.terminal.console import Shown

JOB_HEAD = ("job", "status", "time", "rows", "rows/s", "p50", "p99", "cores", "moves")
EXECUTOR_HEAD = ("executor", "home", "cores", "tuples/s", "per core", "queue", "p50", "p99", "state", "moves", "across")

STYLES = {
    Status.STARTING: "cyan",
    Status.RUNNING: "green",
    Status.DRAINING: "cyan",
    Status.RESTARTING: "yellow",
    Status.FAILED: "bold red",
    Status.STOPPED: "yellow",
}
"""Styles of a job's status."""


def listing(address: str, page: str | None, jobs: list[dict[str, Any]]) -> list[Shown]:
    """Return a table of jobs, below the address of the dashboard's page.

    Parameters
    ----------
    address : str
        The address of the scheduler.
    page : str or None
        The page on the dashboard, if there is one.
    jobs : list of dict
        The jobs, as `overview` returns them.
    """
    if not jobs:
        return [f"No jobs at {address}."]
    return [*([f"Dashboard: {page}"] if page else []), job_table(jobs)]


def job_table(jobs: list[dict[str, Any]]) -> ConsoleTable:
    """Return a table with a row for each job."""
    return ConsoleTable(JOB_HEAD, [*map(_job_row, jobs)], left=2, optional=("moves", "p50", "time"))


def _job_row(job: dict[str, Any]) -> list[Cell]:
    lacking = [name for name in ("oversubscribed", "starved") if job[name] and job["ended"] is None]
    style = "yellow" if lacking else STYLES.get(Status(job["status"]), "")
    return [
        (job["name"], "bold"),
        (", ".join([job["status"], *lacking]), style),
        f"{job['seconds']:,.0f} s",
        count(job["rows"]),
        count(job["source_rate"]),
        duration(job["latency_p50"]),
        duration(job["latency_p99"]),
        count(job["cores"]),
        count(job["moves"]),
    ]


def detail(job: dict[str, Any]) -> list[Shown]:
    """Return a job, the state of the control loop for it, and a table of its executors.

    Parameters
    ----------
    job : dict
        The job, as `overview` returns it.
    """
    error: list[Shown] = [(f"Error: {job['error']}", "bold red"), ""] if job["error"] else []
    lines: list[Shown] = [*_control_lines(job)]
    for handoff in job["handoffs"]:
        lines.append(f"Handoff: {handed_over(HandoffProgress(**handoff), live=job['ended'] is None)}")
    if job["checkpoints"] is not None:
        lines += checkpoint_lines(job["checkpoints"])
    for operator, rows in job["dead_letters"].items():
        lines.append((f"Dead letters of {operator}: {counted(rows, 'row')}", "yellow"))
    if lines:
        lines.append("")
    return [job_table([job]), "", *error, *lines, executor_table(job["executors"])]


def executor_table(executors: list[dict[str, Any]]) -> ConsoleTable:
    """Return a table with a row for each executor."""
    optional = ("across", "per core", "state", "p50", "moves")
    return ConsoleTable(EXECUTOR_HEAD, [*map(_executor_row, executors)], left=2, optional=optional)


def _control_lines(job: dict[str, Any]) -> list[str]:
    """Format the state of the control loop for a job."""
    lines = []
    if job["latency_target"] is not None:
        reached = "" if job["feasible"] else ", which no allocation reaches"
        lines.append(
            f"Latency target: {duration(job['latency_target'])}{reached}; predicted {duration(job['predicted'])}"
        )
    if job["paradigm"] != ELASTIC:
        lines.append(f"Paradigm: {job['paradigm']}")
    if job["dry_run"]:
        lines.append("Dry run: decisions are not carried out")
    if job["starved"]:
        lines.append(f"Starved: {counted(job['starved'], 'core')} missing")
    if job["bound"]:
        lines.append(f"GIL-bound operators: {', '.join(job['bound'])}")
    if job["decided"]:
        lines.append(f"Last decision, {clock(job['decided_at'])}: {job['decided']}")
    if job["control_error"]:
        lines.append(f"Error in the control loop: {job['control_error']}")
    return lines


def _executor_row(executor: dict[str, Any]) -> list[Cell]:
    return [
        (executor["id"], "bold"),
        executor["node"],
        count(executor["cores"]),
        count(executor["arrival_rate"]),
        count(executor["service_rate"]),
        count(executor["queue"]),
        duration(executor["latency_p50"]),
        duration(executor["latency_p99"]),
        size(executor["state_bytes"]),
        count(executor["moves"]),
        count(executor["moves_across"]),
    ]
