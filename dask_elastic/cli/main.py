"""``dask elastic``: the group of commands that Dask's own command line finds."""

from __future__ import annotations

import click

from dask_elastic._version import __version__
from dask_elastic.cli.lazy_group import LazyGroup, Place

PLACES = {
    "run": Place("dask_elastic.cli.run", "run", "Run a script that submits jobs, with a Dask client at hand."),
    "status": Place("dask_elastic.cli.status", "status", "Show the jobs of a cluster, or one in detail."),
    "decisions": Place("dask_elastic.cli.decisions", "decisions", "Show how a job's cores were decided, and why."),
    "stop": Place("dask_elastic.cli.stop", "stop", "End jobs."),
    "plan": Place("dask_elastic.cli.plan", "plan", "Plan placements and migrations offline, from files."),
    "demo": Place("dask_elastic.cli.demo.command", "demo", "Watch cores follow the load, on this machine."),
}


@click.group(
    name="elastic",
    cls=LazyGroup,
    places=PLACES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
)
@click.version_option(__version__, prog_name="dask_elastic")
def elastic() -> None:
    """Elastic, stateful stream processing on Dask.

    A job is a topology of sources, keyed operators and sinks that runs on the workers of a
    Dask cluster, while its cores and the shards of its keys move to where the load is.

    Try it on this machine, in about a minute:
        dask elastic demo

    Run a job of your own, on a cluster of its own or on one that is there:
        dask elastic run word_count.py
        dask elastic run word_count.py --scheduler tcp://10.0.0.1:8786

    Look at it from anywhere:
        export DASK_SCHEDULER_ADDRESS=tcp://10.0.0.1:8786
        dask elastic status --watch
        dask elastic decisions word-count
        dask elastic stop word-count

    Exit codes: 0 is success, 1 an error, which is said in one line, 2 a wrong use of the
    command, 130 Ctrl-C.
    """
