"""``dask elastic``: the command group, which Dask's command line loads by its entry point."""

from __future__ import annotations

import click

from dask_elastic._version import __version__
from dask_elastic.cli.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    "run": LazyCommand("dask_elastic.cli.run", "run", "Run a script that submits jobs, with a Dask client."),
    "status": LazyCommand("dask_elastic.cli.status", "status", "Show the jobs of a cluster, or one job in detail."),
    "topology": LazyCommand("dask_elastic.cli.topology", "topology", "Show the graph of a job's operators."),
    "decisions": LazyCommand("dask_elastic.cli.decisions", "decisions", "Show the decisions about a job's cores."),
    "explain": LazyCommand("dask_elastic.cli.control.explain", "explain", "Show why a job's cores are where they are."),
    "checkpoints": LazyCommand(
        "dask_elastic.cli.checkpoints.commands", "checkpoints", "Show the checkpoints of a job."
    ),
    "state": LazyCommand("dask_elastic.cli.state", "state", "Show or save the state of an operator."),
    "dead-letters": LazyCommand(
        "dask_elastic.cli.dead_letters", "dead_letters", "Show or save the rows on which user code raised."
    ),
    "set-cores": LazyCommand(
        "dask_elastic.cli.changes.set_cores", "set_cores", "Set the cores of an operator's executors."
    ),
    "move": LazyCommand("dask_elastic.cli.changes.move", "move", "Move shards of an executor to another task."),
    "move-executor": LazyCommand(
        "dask_elastic.cli.changes.move_executor", "move_executor", "Move an executor with its state to another worker."
    ),
    "move-groups": LazyCommand(
        "dask_elastic.cli.changes.move_groups", "move_groups", "Move key groups to another executor."
    ),
    "retire": LazyCommand("dask_elastic.cli.changes.retire", "retire", "Drain workers, so that they can be closed."),
    "checkpoint": LazyCommand("dask_elastic.cli.checkpoints.commands", "checkpoint", "Take a checkpoint of a job now."),
    "savepoint": LazyCommand(
        "dask_elastic.cli.checkpoints.commands", "savepoint", "Take a checkpoint and copy it to a folder of its own."
    ),
    "stop": LazyCommand("dask_elastic.cli.changes.stop", "stop", "Stop or drain jobs."),
    "resume": LazyCommand("dask_elastic.cli.checkpoints.resume", "resume", "Continue a job from its checkpoints."),
    "replay": LazyCommand("dask_elastic.cli.control.replay", "replay", "Replay recorded snapshots with any planner."),
    "plan": LazyCommand("dask_elastic.cli.plan", "plan", "Plan placements and migrations offline, from files."),
    "demo": LazyCommand("dask_elastic.cli.demo.command", "demo", "Compare a static and an elastic job locally."),
}


@click.group(
    name="elastic",
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
)
@click.version_option(__version__, prog_name="dask_elastic")
def elastic() -> None:
    """Elastic, stateful stream processing on Dask.

    A job is a topology of sources, keyed operators and sinks that runs on the workers of a
    Dask cluster. Its cores and the shards of its keys move to where the load is.

    Try it on this machine, in under two minutes:
        dask elastic demo

    Run your own job, on a new local cluster or on an existing one:
        dask elastic run word_count.py
        dask elastic run word_count.py --scheduler tcp://10.0.0.1:8786

    Inspect and stop it from anywhere:
        export DASK_SCHEDULER_ADDRESS=tcp://10.0.0.1:8786
        dask elastic status --watch
        dask elastic topology word-count
        dask elastic state word-count per_word --limit 5
        dask elastic stop word-count

    Names of commands, jobs, operators and workers are completed after:
        eval "$(_DASK_COMPLETE=bash_source dask)"

    Exit codes: 0 for success, 1 for an error (printed in one line), 2 for wrong usage of the
    command, 130 after Ctrl-C.
    """
