"""``dask elastic topology``: the graph of a job's operators, and where its executors and tasks are."""

from __future__ import annotations

from pathlib import Path

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.connection import Connection, connected
from dask_elastic.cli.descriptions import descriptions
from dask_elastic.cli.job_completion import job_names
from dask_elastic.cli.json_text import json_text
from dask_elastic.cli.terminal.console import show
from dask_elastic.cli.topology_view import JobGraph, job_tree
from dask_elastic.runtime.client.call import call_scheduler
from dask_elastic.runtime.protocol.job_calls import Assignment

SVG_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command(cls=Command)
@click.argument("job", shell_complete=job_names)
@click.option("--tasks", is_flag=True, help="Also show the tasks of each executor, and their shards.")
@click.option("--svg", type=SVG_FILE, metavar="FILE", help="Write a drawing to an SVG file instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; its tasks have their shards.")
@connected
def topology(connection: Connection, job: str, tasks: bool, svg: Path | None, as_json: bool) -> None:
    """Show the operators of JOB as a tree, from the sources to the sinks.

    For example:
        dask elastic topology word-count
        dask elastic topology word-count --tasks
        dask elastic topology word-count --svg word-count.svg

    Operators on one line run in the same thread. A stateful operator shows its executors, with their
    home, cores and tuples per second. An operator with several inputs is below the first of them.
    """
    with connection.client() as client:
        [described] = descriptions(client, job)
        wanted = tasks or as_json
        assignment = call_scheduler(client, Assignment(job)) if wanted else ()
        # Read after the assignment: a worker may have joined in between.
        [described] = descriptions(client, job) if wanted else [described]
    graph = JobGraph(described, assignment)
    if svg is not None:
        svg.parent.mkdir(parents=True, exist_ok=True)
        svg.write_text(graph.svg(), encoding="utf-8")
        click.echo(f"Wrote {svg}.")
    elif as_json:
        click.echo(json_text(graph.values()))
    else:
        show(job_tree(graph))
