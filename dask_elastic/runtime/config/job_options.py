"""Options of a job: as the user gives them, else from the Dask configuration under ``elastic``."""

from __future__ import annotations

import dataclasses
from typing import Any

import dask.config

from dask_elastic.control.placement.choices import PLACEMENTS
from dask_elastic.migration.group_move import PROGRESSIVE
from dask_elastic.migration.strategy import BETWEEN_EXECUTORS, GROUP_STRATEGIES, STRATEGIES
from dask_elastic.planning.registry import names
from dask_elastic.runtime.config.parsing import (
    Amount,
    Choice,
    ChoiceByName,
    Count,
    Duration,
    Flag,
    Folder,
    Option,
    Size,
    nearest,
)
from dask_elastic.runtime.protocol.job_spec import PARADIGMS, RESOURCE, JobOptions
from dask_elastic.topology.state_kind import STORES
from dask_elastic.topology.ticks import LONGEST_TICK
from dask_elastic.vocab.errors import SubmitError

OPTIONS = (
    Option("on_error", Choice(("fail", "skip"))),
    Option("planner", Choice(tuple(names("cores")))),
    Option("placement", Choice(PLACEMENTS)),
    Option("paradigm", Choice(PARADIGMS)),
    Option("dry_run", Flag()),
    Option("inbox_time", Duration()),
    Option("queue_time", Duration()),
    Option("balance_interval", Duration()),
    Option("flush_interval", Duration()),
    Option("report_interval", Duration()),
    Option("latency_target", Duration(), optional=True),
    Option("longest_tick", Duration(most=LONGEST_TICK)),
    Option("watermark_interval", Duration()),
    Option("idle_timeout", Duration(), optional=True),
    Option("state_store", Choice(STORES)),
    Option("state_memory", Amount(most=1)),
    Option("migration", ChoiceByName((*STRATEGIES, *BETWEEN_EXECUTORS))),
    Option("stall_after", Duration(), optional=True),
    Option("channel_window", Size()),
    Option("balance_threshold", Amount(least=1)),
    Option("light_load", Amount(positive=False, least=0)),
    Option("gather_shards", Flag()),
    Option("checkpoint", Folder(), optional=True),
    Option("checkpoint_interval", Duration()),
    Option("checkpoint_keep", Count()),
    Option("restart_attempts", Count()),
)
NAMES = tuple(option.name for option in OPTIONS)
DURABILITY = ("checkpoint_interval", "checkpoint_keep", "restart_attempts")
"""Options of jobs with checkpoints."""


def job_options(given: dict[str, Any]) -> JobOptions:
    """Complete and check the options of a job.

    Parameters
    ----------
    given : dict
        The options that the user gives; durations as ``"5ms"`` or seconds, sizes as ``"32MiB"`` or bytes.

    Returns
    -------
    JobOptions
        Seconds, bytes and numbers.

    Raises
    ------
    SubmitError
        If an option is unknown, or does not take its value; names the nearest option or value.

    Examples
    --------
    >>> job_options({"inbox_time": "2ms"}).inbox_time
    0.002
    >>> job_options({"inboxtime": "2ms"})
    Traceback (most recent call last):
        ...
    dask_elastic.vocab.errors.SubmitError: there is no option 'inboxtime': did you mean 'inbox_time'?...
    """
    for name in given:
        if name not in NAMES:
            near = nearest(name, NAMES)
            hint = f"did you mean {near!r}? " if near else ""
            raise SubmitError(f"there is no option {name!r}: {hint}The options are {', '.join(NAMES)}")
    values = {option.name: _value(option, given) for option in OPTIONS}
    if isinstance(values["migration"], dict):
        values["migration_of"] = values.pop("migration")
    if values["paradigm"] == RESOURCE and ("migration" not in values or not given.get("migration")):
        # What is configured is about shards, unless it names one of these.
        configured = values.get("migration")
        values["migration"] = configured if configured in GROUP_STRATEGIES else PROGRESSIVE
    return JobOptions(**values)


def given_options(options: JobOptions) -> dict[str, Any]:
    """Return options as `job_options` takes them.

    Parameters
    ----------
    options : JobOptions
        The options of a job.

    Returns
    -------
    dict of str to object
        Each by its name.

    Examples
    --------
    >>> options = job_options({"migration": {"hourly": "instant"}})
    >>> given_options(options)["migration"], job_options(given_options(options)) == options
    ({'hourly': 'instant'}, True)
    """
    given = dataclasses.asdict(options)
    strategies = given.pop("migration_of")
    return {**given, "migration": strategies or options.migration}


def _value(option: Option, given: dict[str, Any]) -> Any:
    value = given.get(option.name)
    if value is None and not (option.optional and option.name in given):
        value = dask.config.get(option.path)
    return option.parse(value, option.name)
