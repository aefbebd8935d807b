"""Submission of a topology: what can be checked before rows flow is checked here, on the client."""

from __future__ import annotations

import importlib
import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from types import CellType
from typing import TYPE_CHECKING, Any

import cloudpickle
import dask.config
import pyarrow as pa
from distributed.comm.core import CommClosedError

from dask_elastic._version import __version__
from dask_elastic.control.placement.choices import SPREAD, check_installed, kind_of_placement
from dask_elastic.migration.strategy import check_group_strategy, check_names, check_strategy
from dask_elastic.runtime.client.call import call_scheduler, check_connected, checked_client, scheduler_lost
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.client.senders import drop
from dask_elastic.runtime.config.job_options import job_options
from dask_elastic.runtime.config.tls_policy import check_exposure
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.protocol.job_spec import ELASTIC, RESOURCE, ComponentSummary, ComputeSummary, JobOptions
from dask_elastic.runtime.protocol.tables import table_bytes
from dask_elastic.state.results import empty_state
from dask_elastic.topology.component import Branch, Component, Exit, build_components
from dask_elastic.topology.fused.groups import Fuse
from dask_elastic.topology.known_schemas import known_inputs
from dask_elastic.topology.operators import Compute, SourceOperator
from dask_elastic.topology.topology import Topology
from dask_elastic.topology.validation import check_name
from dask_elastic.topology.windows.configuration import configuration
from dask_elastic.vocab.errors import SubmitError, TopologyError

if TYPE_CHECKING:
    from distributed import Client


def submit(
    topology: Topology,
    client: Client | None = None,
    *,
    name: str | None = None,
    cores: Mapping[str, int] | None = None,
    fuse: Fuse = False,
    **options: Any,
) -> Job:
    """Start a topology on a Dask cluster.

    The job runs on the cluster: it continues when this client closes, and `dask_elastic.job` finds it by its name.

    Parameters
    ----------
    topology : Topology
        The topology to run.
    client : distributed.Client, optional
        A client of the cluster; the current client if left out.
    name : str, optional
        Name of the job; the topology's name if left out. Two running jobs cannot have the same name.
    cores : mapping of str to int, optional
        Cores of each executor, by stateful operator, at most the slots of the cluster. The control loop does not change
        them, as after `Job.set_cores`. Other operators start with the remaining cores.
    fuse : False, "auto" or sequence of (str, str)
        Which computes run in one task by direct calls, instead of sending rows to each other: none; those that share
        key columns (`Topology.explain` shows them); or pairs of a compute and one that reads it, as of
        `Topology.fusions`.
    **options
        What the control loop aims at: ``latency_target``, ``planner``, ``placement``,
        ``paradigm``, ``dry_run``. How the job runs:
        ``on_error``, ``inbox_time``, ``queue_time``, ``balance_interval``, ``balance_threshold``, ``light_load``,
        ``flush_interval``, ``channel_window``, ``migration``, ``watermark_interval``, ``idle_timeout``,
        ``report_interval``, ``stall_after``. The configuration page explains them. Defaults come from the Dask
        configuration under ``elastic``.

    Returns
    -------
    Job
        A handle on the running job.

    Raises
    ------
    TypeError
        If `topology` is not a Topology, or `client` is not a Client.
    TopologyError
        If the topology cannot run, for example because an operator has no input.
    SchemaMismatch
        If an operator reads a column that its input lacks, or the streams of a union differ in the type of a key or of
        an aggregated column, as far as that is known before the job runs.
    SubmitError
        If an option is unknown or has an invalid value, user code cannot be pickled, the name is in use, the cluster
        has no workers, or versions of dask_elastic differ between client, scheduler and workers.

    Warns
    -----
    UserWarning
        If workers of the cluster hang; names them. The job runs without them until they answer.

    Examples
    --------
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> from dask.distributed import Client
    >>> topology = de.Topology("letters")
    >>> letters = topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a", "b", "a"]})))
    >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter")
    >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
    ...     job = de.submit(topology, client)
    ...     job.wait(progress=False)
    ...     job.state("per_letter").to_arrow().sort_by("letter").to_pydict()
    {'letter': ['a', 'b'], 'seen': [2, 1]}
    """
    if not isinstance(topology, Topology):
        raise TypeError(f"submit takes a Topology, not {type(topology).__name__}")
    client = checked_client(client)
    check_exposure([client.scheduler.address])
    checked = job_options(options)
    check_installed(checked.placement)
    components = build_components(topology, fuse)
    check_sources(components)
    return start(described(topology, components, job_name(name, topology), checked, cores or {}), client)


def check_sources(components: Iterable[Component]) -> None:
    """Check that all sources can be read.

    Raises
    ------
    SourceError
        Naming the one that cannot.
    """
    for component in components:
        if isinstance(component.operator, SourceOperator):
            component.operator.source.check()


def described(
    topology: Topology, components: tuple[Component, ...], name: str, options: JobOptions, cores: Mapping[str, int]
) -> Submit:
    """Return the call that submits a job, after checking what can be checked before it runs.

    Raises
    ------
    SubmitError
        If it cannot run.
    """
    if options.checkpoint is not None:
        # Jobs without checkpoints start without it.
        from dask_elastic.topology.restartable import check_restartable

        check_restartable(name, [component.operator for component in components])
    _check_migration(options, components)
    inputs = known_inputs(topology)
    return Submit(
        name=name,
        version=__version__,
        summaries=tuple(
            _summary(topology, component, inputs, options.checkpoint is not None) for component in components
        ),
        options=options,
        cores=_checked_cores(components, cores, options.paradigm),
        components=pickle_components(components),
    )


def _check_migration(options: JobOptions, components: tuple[Component, ...]) -> None:
    if options.paradigm == RESOURCE:
        _check_group_placement(options.placement)
    with_tasks = [component for component in components if isinstance(component.operator, Compute)]
    fused = [operator.name for component in with_tasks for operator in component.fused]
    check_names(options.migration_of, [component.operator.name for component in with_tasks], fused)
    for component in with_tasks:
        operator = component.operator
        assert isinstance(operator, Compute)
        if options.paradigm == RESOURCE:
            check_group_strategy(options.strategy(operator.name))
            _check_groups(operator)
            continue
        check_strategy(options.strategy(operator.name), [operator], component.fused)


def _check_group_placement(placement: str) -> None:
    if placement != SPREAD and kind_of_placement(placement) != "placement":
        raise SubmitError(
            f"placement={placement!r} gives each node consecutive executors: with paradigm='resource-centric' it would "
            "have to give each executor consecutive key groups, which these do not keep. Choose another placement."
        )


def _check_groups(operator: Compute) -> None:
    if operator.executors is not None and operator.executors > operator.shards:
        raise SubmitError(
            f"operator {operator.name!r} has executors={operator.executors} and shards={operator.shards}: with "
            "paradigm='resource-centric' shards= is the number of its key groups, of which each executor owns some. "
            "Choose more shards, or fewer executors."
        )


def start(job: Submit, client: Client) -> Job:
    """Have the scheduler start a job."""
    install(client)
    started = call_scheduler(client, job)
    if started.silent:
        left_out = " and ".join(started.silent)
        warnings.warn(
            f"job {started.name!r} runs without {left_out}: no answer; it joins when it answers", stacklevel=2
        )
    drop(client, started.name)
    return Job(started.name, client)


def install(client: Client) -> None:
    """Register the plugins that host dask_elastic on a cluster; do nothing if they are registered already.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.

    Raises
    ------
    SchedulerLost
        If the client has lost the scheduler.
    """
    check_connected(client)
    path = dask.config.get("elastic.installer")
    module, _, function = path.rpartition(".")
    try:
        getattr(importlib.import_module(module), function)(client)
    except CommClosedError as error:
        raise scheduler_lost(client, error) from error


def job_name(name: str | None, topology: Topology) -> str:
    """Return the name of a job; raises `SubmitError` if it is no valid name."""
    try:
        return topology.name if name is None else check_name(name, "job")
    except TopologyError as error:
        raise SubmitError(str(error)) from error


def _summary(
    topology: Topology, component: Component, inputs: Mapping[str, pa.Schema | None], durable: bool
) -> ComponentSummary:
    operator = component.operator
    about: dict[str, Any] = {"instances": None, "shards": 1}
    if isinstance(operator, Compute):
        about = {
            "fused": tuple(_compute_summary(one, inputs, durable) for one in component.fused),
            "instances": operator.executors,
            "shards": operator.shards,
            "configuration": str(configuration(topology, component.name)),
            **_compute_summary(operator, inputs, durable)._asdict(),
        }
        del about["name"]
    elif isinstance(operator, SourceOperator):
        source = operator.source
        sent = None if source.sent_schema is None else source.sent_schema.serialize().to_pybytes()
        about |= {
            "instances": source.parallel,
            "pushed": source.pushed,
            "rate": source.rate,
            "epochs": source.epochs,
            "accepts_resets": source.on_reset == "accept",
            "spooled": durable and (source.spooled or (source.epochs > 0 and source.replayable)),
            "sent_schema": sent,
        }
    about |= {"kinds": component.kinds, "edges": component.edges}
    return ComponentSummary(component.name, component.kind, component.inputs, component.operators, **about)


def _compute_summary(operator: Compute, inputs: Mapping[str, pa.Schema | None], durable: bool) -> ComputeSummary:
    return ComputeSummary(
        operator.name,
        operator.keys,
        table_bytes(empty_state(operator, inputs[operator.name])).to_pybytes(),
        _reading(operator) if durable else None,
        operator.routed_by or operator.keys,
        pickle.dumps(operator.windowing) if operator.windowing and operator.aggregates else None,
    )


def _reading(operator: Compute) -> bytes:
    """Return how the operator's state is read from a checkpoint."""
    # Jobs without checkpoints start without it.
    from dask_elastic.checkpoint.read_state import reading_of

    return pickle.dumps(reading_of(operator))


def _checked_cores(components: tuple[Component, ...], cores: Mapping[str, int], paradigm: str) -> dict[str, int]:
    if cores and paradigm != ELASTIC:
        raise SubmitError(f"cores={dict(cores)!r} with paradigm={paradigm!r}: its executors have one core each")
    stateful = [c.name for c in components if c.kind == "compute"]
    fused = {operator.name: component.name for component in components for operator in component.fused}
    for operator, count in cores.items():
        if operator in fused:
            raise SubmitError(f"cores= names {operator!r}, which runs in the tasks of {fused[operator]!r}: name this")
        if operator not in stateful:
            raise SubmitError(f"cores= names {operator!r}, which is no stateful operator: choose from {stateful}")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise SubmitError(f"cores={{{operator!r}: {count!r}}}: an executor has at least one core")
    return dict(cores)


def pickle_components(components: tuple[Component, ...]) -> bytes:
    """Pickle what runs on the workers.

    Raises
    ------
    SubmitError
        Naming the operator, and the variable of its function where there is one, that cannot be pickled.
    """
    try:
        data: bytes = cloudpickle.dumps(components)
    except Exception as error:  # any object may fail to pickle in any way of its own
        raise _blamed(components, error) from error
    return data


def _blamed(components: tuple[Component, ...], error: Exception) -> SubmitError:
    for component in components:
        for operator in _operators(component):
            if _picklable(operator) is None:
                continue
            where = _variable(operator) or ""
            reason = re.sub(r"\s+", " ", str(_picklable(operator) or error))
            hint = "Create it inside the function, or pass what it is made from."
            return SubmitError(f"operator {operator.name!r} cannot be sent to the workers:{where} {reason}. {hint}")
    return SubmitError(f"the topology cannot be sent to the workers: {error}")


def _operators(component: Component) -> list[Any]:
    found: list[Any] = [component.operator]
    waiting: list[Branch | Exit] = list(component.outputs)
    while waiting:
        output = waiting.pop()
        if isinstance(output, Branch):
            found.append(output.operator)
            waiting.extend(output.then)
    return found


def _picklable(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # see pickle_components
        return error
    return None


def _variable(operator: Any) -> str | None:
    """Name the variable of a function that cannot be pickled: in its closure, its globals, or its defaults."""
    for attribute in ("function", "predicate", "logic", "source", "sink"):
        for function in _functions(getattr(operator, attribute, None)):
            for kind, variables in _variables(function).items():
                for variable, value in variables.items():
                    if _picklable(value) is not None:
                        text = f"{kind} {variable!r} ({type(value).__name__})"
                        return f" its function {function.__qualname__!r} uses the {text}, which cannot be pickled;"
    return None


def _functions(value: Any, depth: int = 4) -> list[Any]:
    if hasattr(value, "__code__"):
        return [value]
    parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return [function for part in parts.values() for function in _functions(part, depth - 1)] if depth else []


def _variables(function: Any) -> dict[str, dict[str, Any]]:
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    enclosed = {variable: cell.cell_contents for variable, cell in cells if cell != CellType()}
    used = {variable: function.__globals__[variable] for variable in code.co_names if variable in function.__globals__}
    defaults = dict(zip(code.co_varnames[: code.co_argcount][::-1], (function.__defaults__ or ())[::-1], strict=False))
    return {"variable": enclosed, "global variable": used, "default argument": defaults}
