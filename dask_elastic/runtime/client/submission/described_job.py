"""Description of a job for the scheduler: what can be checked before rows flow is checked here, on the client."""

from __future__ import annotations

import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from types import CellType
from typing import Any

import cloudpickle
import pyarrow as pa

from dask_elastic._version import __version__
from dask_elastic.control.placement.choices import SPREAD, check_installed, kind_of_placement
from dask_elastic.migration.strategy import MERGING, check_group_strategy, check_names, check_strategy
from dask_elastic.runtime.config.job_options import DURABILITY, job_options
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.protocol.job_spec import ELASTIC, RESOURCE, ComponentSummary, ComputeSummary, JobOptions
from dask_elastic.runtime.protocol.remote_errors import text_of
from dask_elastic.runtime.protocol.tables import table_bytes
from dask_elastic.state.results import empty_state
from dask_elastic.topology.checks.chain_check import check_chains
from dask_elastic.topology.checks.key_check import check_keys
from dask_elastic.topology.checks.source_check import check_sources
from dask_elastic.topology.component import Branch, Component, Exit, build_components
from dask_elastic.topology.fused.groups import Fuse, fused_groups, pairs
from dask_elastic.topology.known_schemas import known_inputs
from dask_elastic.topology.operators import Compute, SinkOperator, SourceOperator
from dask_elastic.topology.sink import Sink
from dask_elastic.topology.source import Source
from dask_elastic.topology.topology import Topology
from dask_elastic.topology.validation import check_name
from dask_elastic.topology.windows.configuration import configuration
from dask_elastic.vocab.errors import SubmitError, TopologyError
from dask_elastic.vocab.pickled_functions import pickled

CONNECTORS = "dask_elastic.connectors.sources", "dask_elastic.connectors.sinks"
"""The packages with the sources and sinks."""


def checked_job(
    topology: Topology, name: str | None, cores: Mapping[str, int] | None, fuse: Fuse, options: dict[str, Any]
) -> Submit:
    """Return the call that submits a topology as a job, with the arguments and the errors of `submit`."""
    checked = job_options(options)
    _check_durable(options, checked)
    check_installed(checked.placement)
    components = divided(topology, fuse, checked)
    check_sources(components)
    return described(topology, components, job_name(name, topology.name), checked, {} if cores is None else cores)


def divided(topology: Topology, fuse: Fuse, options: JobOptions) -> tuple[Component, ...]:
    """Return the components of a job; "auto" fuses only what the options of the job allow.

    A compute for which a strategy of migration is given begins a component: the strategy is that of its tasks.

    Raises
    ------
    TopologyError
        As `build_components`.
    """
    if fuse != "auto":
        return build_components(topology, fuse)
    possible = pairs(topology, fused_groups(topology, fuse))
    elastic = options.paradigm != RESOURCE
    merging = {name for pair in possible for name in pair if elastic and options.strategy(name) in MERGING}
    together = [pair for pair in possible if pair[1] not in options.migration_of and merging.isdisjoint(pair)]
    return build_components(topology, fuse if together == possible else together)


def _check_durable(given: Mapping[str, Any], options: JobOptions) -> None:
    """Check that options of checkpoints come with a folder for them, unless the user says that there is none.

    Raises
    ------
    SubmitError
        Naming the first that is without effect.
    """
    if options.checkpoint is None and "checkpoint" not in given:
        for name in DURABILITY:
            if given.get(name) is not None:
                raise SubmitError(
                    f"{name}={given[name]!r} has no effect, because the job takes no checkpoints: give a folder for "
                    f'them, as checkpoint="/data/my-job", or leave {name} out.'
                )


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
    check_chains(components)
    inputs = known_inputs(topology)
    check_keys(topology, inputs)
    durable = options.checkpoint is not None
    summaries = tuple(_summary(topology, component, inputs, durable) for component in components)
    check_migration_names(options, summaries)
    _check_migration(options, components)
    return Submit(
        name=name,
        version=__version__,
        summaries=summaries,
        options=options,
        cores=checked_cores(summaries, cores, options.paradigm),
        components=pickle_components(components),
    )


def check_migration_names(options: JobOptions, summaries: Iterable[ComponentSummary]) -> None:
    """Check that strategies are given for computes that have tasks of their own; raises `SubmitError`."""
    with_tasks = [summary for summary in summaries if summary.kind == "compute"]
    fused = [compute.name for summary in with_tasks for compute in summary.fused]
    check_names(options.migration_of, [summary.name for summary in with_tasks], fused)


def _check_migration(options: JobOptions, components: tuple[Component, ...]) -> None:
    if options.paradigm == RESOURCE:
        _check_group_placement(options.placement)
    with_tasks = [component for component in components if isinstance(component.operator, Compute)]
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


def job_name(name: str | None, default: str) -> str:
    """Return the name of a job; raises `SubmitError` if it is no valid name."""
    try:
        return default if name is None else check_name(name, "job")
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
            "lossy": not source.replayable,
            "connector": _connector(source),
        }
    elif isinstance(operator, SinkOperator):
        about |= {"lossy": operator.sink.promise == "at-most-once", "connector": _connector(operator.sink)}
    about |= {"kinds": component.kinds, "edges": component.edges}
    return ComponentSummary(component.name, component.kind, component.inputs, component.operators, **about)


def _connector(made: Source | Sink) -> str:
    """Return the class of this package that a source or sink is of, and what its offsets depend on; empty if none."""
    divided = getattr(made, "divided", "")
    for kind in type(made).__mro__:
        package, _, _ = kind.__module__.rpartition(".")
        if package in CONNECTORS:
            return f"{package.rpartition('.')[2]}.{kind.__name__}" + (f" in {divided}" if divided else "")
    return ""


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


def checked_cores(summaries: Collection[ComponentSummary], cores: Mapping[str, int], paradigm: str) -> dict[str, int]:
    """Return the cores of single operators as the user has set them.

    Raises
    ------
    SubmitError
        If they are no numbers of cores by stateful operator, or executors have one core each.
    """
    if not isinstance(cores, Mapping):
        raise SubmitError(f"cores={cores!r}: give the cores of single operators, as cores={{'per_key': 2}}")
    if cores and paradigm != ELASTIC:
        raise SubmitError(f"cores={dict(cores)!r} with paradigm={paradigm!r}: its executors have one core each")
    stateful = [summary.name for summary in summaries if summary.kind == "compute"]
    fused = {compute.name: summary.name for summary in summaries for compute in summary.fused}
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
        return pickled(components)
    except Exception as error:  # any object may fail to pickle in any way of its own
        raise _blamed(components, error) from error


def _blamed(components: tuple[Component, ...], error: Exception) -> SubmitError:
    for component in components:
        for operator in _operators(component):
            if (problem := _picklable(operator)) is None:
                continue
            where = _variable(operator) or ""
            reason = re.sub(r"\s+", " ", text_of(problem))
            hint = "Create it inside the function, or pass what it is made from."
            return SubmitError(f"operator {operator.name!r} cannot be sent to the workers:{where} {reason}. {hint}")
    return SubmitError(f"the topology cannot be sent to the workers: {text_of(error)}")


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
