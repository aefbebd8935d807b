"""Resuming a job from its checkpoints, after the loss of the scheduler or a stop."""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from dask_elastic._version import __version__
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.changed_aggregates import ChangedAggregates
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest, OperatorState
from dask_elastic.checkpoint.other_placing import OtherPlacing
from dask_elastic.control.placement.choices import check_installed
from dask_elastic.routing.keyspace import KeySpace
from dask_elastic.runtime.client.call import check_connected, checked_client
from dask_elastic.runtime.client.job import Job
from dask_elastic.runtime.client.submission.described_job import (
    check_migration_names,
    checked_cores,
    described,
    divided,
    job_name,
)
from dask_elastic.runtime.client.submission.job_start import start
from dask_elastic.runtime.config.job_options import given_options, job_options
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.protocol.job_spec import RESOURCE, ComponentSummary, ComputeSummary
from dask_elastic.topology.checks.source_check import check_sources
from dask_elastic.topology.component import Component
from dask_elastic.topology.fused.groups import Fuse
from dask_elastic.topology.topology import Topology
from dask_elastic.vocab.errors import CheckpointError, SubmitError
from dask_elastic.vocab.text.shown_url import shown_url

if TYPE_CHECKING:
    from distributed import Client


def resume(
    url: str | os.PathLike[str],
    client: Client | None = None,
    *,
    topology: Topology | None = None,
    fuse: Fuse = False,
    number: int | None = None,
    name: str | None = None,
    cores: Mapping[str, int] | None = None,
    drop: Collection[str] = (),
    **options: Any,
) -> Job:
    """Continue a job from a checkpoint, on the same cluster or on a new one.

    Executors start with the state of the checkpoint, sources continue behind the rows that it covers, and sinks commit
    what they had prepared for it. The earlier run must have ended: if its scheduler is lost, so are its workers.

    Parameters
    ----------
    url : str or path
        The folder of the job's checkpoints.
    client : distributed.Client, optional
        A client of the cluster; the current client if left out.
    topology : Topology, optional
        The topology, for example with changed functions or another number of executors; that of the checkpoint if left
        out. Operators are found by their names. New ones start without state.
    fuse : False, "auto" or sequence of (str, str)
        Which computes of ``topology`` run in one task, as for `submit`: others than before, if wanted. Without
        ``topology``, those of the checkpoint do.
    number : int, optional
        The number of the checkpoint; the newest one that is not damaged if left out. Later checkpoints are void then:
        another call finds them by their numbers only.
    name : str, optional
        The name of the job; as before if left out.
    cores : mapping of str to int, optional
        As for `submit`; as before if left out.
    drop : collection of str
        Names of stateful operators whose state is dropped, and of sources and sinks that are given up, since
        ``topology`` no longer has them.
    **options
        As for `submit`; as before if left out. A job that continues from a savepoint needs ``checkpoint``, a new folder
        for its own checkpoints: the savepoint is copied there and stays as it is.

    Returns
    -------
    Job
        A handle on the running job.

    Raises
    ------
    NoCheckpoint
        If the folder has no complete checkpoint.
    CheckpointCorrupt
        If all of them are damaged.
    CheckpointError
        If the checkpoint cannot be read.
    TypeError
        If `topology` is not a Topology, or `client` is not a Client.
    SubmitError
        If the topology does not fit the checkpoint, ``drop`` names what the checkpoint lacks or the topology has, or
        for the reasons of `submit`.

    Examples
    --------
    >>> import tempfile
    >>> import dask_elastic as de
    >>> import pyarrow as pa
    >>> from dask.distributed import Client
    >>> topology = de.Topology("letters")
    >>> letters = topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a", "b", "a"]}), rate=1))
    >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter")
    >>> with (
    ...     tempfile.TemporaryDirectory() as folder,
    ...     Client(n_workers=1, processes=False, dashboard_address=None) as client,
    ... ):
    ...     job = de.submit(topology, client, checkpoint=folder)
    ...     number = job.checkpoint()
    ...     job.stop()
    ...     again = de.resume(folder, client)
    ...     again.wait(progress=False)
    ...     again.state("per_letter").to_arrow().sort_by("letter").to_pydict()
    {'letter': ['a', 'b'], 'seen': [2, 1]}
    """
    if topology is not None and not isinstance(topology, Topology):
        raise TypeError(f"resume takes a Topology as topology=, not {type(topology).__name__}")
    client = checked_client(client)
    check_connected(client)
    folder = CheckpointFolder(url)
    manifest = Catalog(folder).load(number)
    saved = _saved(folder, manifest)
    own = _own_folder(folder, manifest, options.pop("checkpoint", None))
    merged = job_options({**given_options(saved.options), **options, "checkpoint": own})
    check_installed(merged.placement)
    own_name = job_name(name, saved.name)
    given = saved.cores if cores is None else cores
    if topology is None:
        if fuse:
            raise SubmitError(f"fuse={fuse!r} is of a topology: pass topology= as well.")
        check_migration_names(merged, saved.summaries)
        own_cores = checked_cores(saved.summaries, given, merged.paradigm)
        job = dataclasses.replace(saved, name=own_name, options=merged, cores=own_cores, version=__version__)
    else:
        components = divided(topology, fuse, merged)
        check_sources(components)
        _check_states(components, manifest)
        job = described(topology, components, own_name, merged, given)
    summaries = tuple(_fitted(summary, manifest) for summary in job.summaries)
    if topology is not None:
        _check_placing(components, summaries, manifest)
    _check_groups(summaries, manifest, merged.paradigm)
    _check_sources(summaries, manifest)
    _check_spools(summaries, saved.summaries, manifest)
    _check_drop(drop, summaries, saved.summaries, manifest)
    _check_dropped(summaries, manifest, drop)
    _check_connectors(summaries, saved.summaries, manifest)
    continued = dataclasses.replace(job, summaries=summaries, resume=manifest.number, run=saved.run, savepoint=None)
    if manifest.savepoint:
        # The earlier run may go on: what the sinks write for this one must have other names.
        continued = dataclasses.replace(continued, run="", savepoint=folder.url)
    return start(continued, client)


def _own_folder(folder: CheckpointFolder, manifest: Manifest, given: str | os.PathLike[str] | None) -> str:
    """Return the folder of the job's own checkpoints.

    Raises
    ------
    SubmitError
        If it has to be another one and is not, or the other way round.
    """
    own = folder.url if given is None else CheckpointFolder(given).url
    if manifest.savepoint and own == folder.url:
        raise SubmitError(
            f"{folder.shown} is a savepoint, which stays as it is: pass checkpoint= (--checkpoint), a new folder for "
            "the checkpoints of the job that continues from it."
        )
    if not manifest.savepoint and own != folder.url:
        raise SubmitError(
            f"checkpoint={shown_url(own)!r}: a job continues in the folder of its checkpoints, {folder.shown}. To "
            "continue in another one, take a savepoint with Job.savepoint and resume that."
        )
    return own


def _check_states(components: tuple[Component, ...], manifest: Manifest) -> None:
    """Refuse operators whose state cannot be computed from that of the checkpoint."""
    operators = {operator.name: operator for component in components for operator in component.computes}
    for state in manifest.states:
        if state.name in operators:
            try:
                ChangedAggregates.of(state, operators[state.name])
            except CheckpointError as error:
                raise SubmitError(f"checkpoint {manifest.number}: {error}") from error


def _check_placing(
    components: tuple[Component, ...], summaries: tuple[ComponentSummary, ...], manifest: Manifest
) -> None:
    """Refuse to give other shards to state of which one key has several rows, each with an identity of its own."""
    by_name = {state.name: state for state in manifest.states}
    for component, summary in zip(components, summaries, strict=True):
        for operator in component.computes:
            state = by_name.get(operator.name)
            # Key groups keep their keys, however many executors there are.
            if state is None or state.owned or (operator.windowing is None and operator.join is None):
                continue
            routed_by = operator.routed_by or operator.keys
            executors = summary.instances or 1
            if OtherPlacing.of(state, KeySpace(executors, summary.shards), routed_by) is None:
                continue
            before = f"{', '.join(state.routed_by or state.keys)} among {state.groups} shards"
            raise SubmitError(
                f"operator {operator.name!r} has windows or is a join: its state in checkpoint {manifest.number} "
                f"is routed by {before}, and would be by {', '.join(routed_by)} among {executors * summary.shards}. "
                f"Fuse it as before, or give it another name and pass drop=[{operator.name!r}]."
            )


def _saved(folder: CheckpointFolder, manifest: Manifest) -> Submit:
    """Return the call with which the job was submitted."""
    contents = folder.read(manifest.topology)
    try:
        saved = pickle.loads(contents)
    except Exception as error:  # unpickling may raise any exception
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and missing.partition(".")[0] != "dask_elastic":
            raise CheckpointError(
                f"{folder.where(manifest.topology.path)} cannot be read: there is no module {missing!r} here. Install "
                "it, or add its folder to PYTHONPATH, on the client, the scheduler and all workers."
            ) from error
        raise CheckpointError(
            f"{folder.where(manifest.topology.path)} was written by another version of dask_elastic, and cannot be "
            f"read by {__version__}: {type(error).__name__}: {error}. Install the version with which the job ran."
        ) from error
    assert isinstance(saved, Submit), f"{saved!r} is no job"
    return saved


def _fitted(summary: ComponentSummary, manifest: Manifest) -> ComponentSummary:
    """Return the summary of a component with the executors and shards that the state in the checkpoint needs."""
    by_name = {state.name: state for state in manifest.states}
    found = [(compute, by_name[compute.name]) for compute in summary.computes if compute.name in by_name]
    for compute, state in found:
        if compute.keys != state.keys:
            raise SubmitError(
                f"operator {compute.name!r} has the keys {', '.join(compute.keys)}, and its state in checkpoint "
                f"{manifest.number} has {', '.join(state.keys)}. Give an operator with other keys another name."
            )
    if not found:
        return summary
    # Of computes that ran apart, the others' state is divided as that of the first is.
    _, state = found[0]
    executors = summary.instances or state.executors
    # Key groups are the shards of each executor, however many executors there are.
    shards = state.shards if state.owned else _shards(summary.name, executors, state)
    return dataclasses.replace(summary, instances=executors, shards=shards)


def _shards(operator: str, executors: int, state: OperatorState) -> int:
    if state.groups % executors:
        fitting = [count for count in range(1, state.groups + 1) if state.groups % count == 0]
        raise SubmitError(
            f"operator {operator!r} cannot continue with {executors} executors: its state has {state.groups} shards, "
            f"which are divided evenly. Choose executors= from {', '.join(map(str, fitting))}."
        )
    return state.groups // executors


def _check_groups(summaries: tuple[ComponentSummary, ...], manifest: Manifest, paradigm: str) -> None:
    """Refuse state of another paradigm, and key groups that would have other keys, or too many executors."""
    by_name = {state.name: state for state in manifest.states}
    for summary in summaries:
        for compute, state in ((one, by_name[one.name]) for one in summary.computes if one.name in by_name):
            if bool(state.owned) != (paradigm == RESOURCE):
                kept = "as key groups that move" if state.owned else "in shards of fixed executors"
                raise SubmitError(
                    f"paradigm={paradigm!r}: checkpoint {manifest.number} has the state of {state.name!r} {kept}. "
                    "Continue with the paradigm that it was taken with."
                )
            if state.owned:
                _check_key_groups(summary, compute, state, manifest.number)


def _check_key_groups(summary: ComponentSummary, compute: ComputeSummary, state: OperatorState, number: int) -> None:
    executors = summary.instances or state.executors
    if executors > state.shards:
        raise SubmitError(
            f"operator {summary.name!r} cannot continue with {executors} executors: its state in checkpoint {number} "
            f"has {state.shards} key groups. Choose executors= from 1 to {state.shards}."
        )
    before, now = state.routed_by or state.keys, compute.routed_by or compute.keys
    if now != before:
        raise SubmitError(
            f"operator {state.name!r}: the key groups of checkpoint {number} are by {', '.join(before)}, and would be "
            f"by {', '.join(now)}. With paradigm={RESOURCE!r}, fuse it as before."
        )
    if summary.shards != state.shards:
        raise SubmitError(
            f"operator {state.name!r} has {state.shards} key groups in checkpoint {number}, and would have "
            f"{summary.shards} in the tasks of {summary.name!r}. With paradigm={RESOURCE!r}, fuse it as before."
        )
    if state.parted_by != state.shards and state.executors > 1:
        raise SubmitError(
            f"operator {state.name!r}: checkpoint {number} was written by a version of dask_elastic in which the state "
            f"of key groups depended on the number of executors. Resume it with that version, or give the operator "
            f"another name and pass drop=[{state.name!r}]."
        )


def _check_sources(summaries: tuple[ComponentSummary, ...], manifest: Manifest) -> None:
    for summary in summaries:
        positions = manifest.positions.get(summary.name)
        if positions is not None and len(positions) != summary.instances:
            raise SubmitError(
                f"source {summary.name!r} has {summary.instances} instances, and {len(positions)} in checkpoint "
                f"{manifest.number}. Give it parallel={len(positions)}: instances continue where they were."
            )


def _check_spools(
    summaries: tuple[ComponentSummary, ...], former: tuple[ComponentSummary, ...], manifest: Manifest
) -> None:
    """Refuse sources that accept rows in another way than before: their positions would mean something else."""
    before = {summary.name: _accepts(summary) for summary in former if summary.name in manifest.positions}
    for summary in summaries:
        name, accepts = summary.name, _accepts(summary)
        if summary.kind == "source" and before.get(name, accepts) != accepts:
            raise SubmitError(
                f"source {name!r} {accepts}, and in checkpoint {manifest.number} it {before[name]}: rows that it has "
                f"accepted would be lost or read twice. Leave it as it was, or give it another name and pass "
                f"drop=[{name!r}]."
            )


def _check_connectors(
    summaries: tuple[ComponentSummary, ...], former: tuple[ComponentSummary, ...], manifest: Manifest
) -> None:
    """Refuse other kinds of sources and sinks: they would take offsets and prepared rows for those of their own."""
    before = {summary.name: summary.connector for summary in former}
    for summary in summaries:
        name, was, is_now = summary.name, before.get(summary.name), summary.connector
        held = name in manifest.positions if summary.kind == "source" else any(manifest.prepared.get(name, ()))
        if was and is_now and was != is_now and held:
            what = "its position means other rows" if summary.kind == "source" else "it has prepared rows"
            raise SubmitError(
                f"{summary.kind} {name!r} is {is_now}, and in checkpoint {manifest.number} it is {was}: {what}. Leave "
                f"it as it was, or give it another name and pass drop=[{name!r}]."
            )


def _accepts(summary: ComponentSummary) -> str:
    if not summary.spooled:
        return "writes no rows that it accepts to the folder"
    return "writes epochs of Spark to the folder" if summary.epochs else "writes batches that it accepts to the folder"


def _check_drop(
    drop: Collection[str],
    summaries: tuple[ComponentSummary, ...],
    former: tuple[ComponentSummary, ...],
    manifest: Manifest,
) -> None:
    """Refuse names of nothing that could be dropped: of what the job never had, and of what goes on."""
    if isinstance(drop, str) or not isinstance(drop, Collection):
        raise SubmitError(f"drop={drop!r}: give the names of operators, sources and sinks, as drop=['per_key']")
    before, now = _kinds(former), _kinds(summaries)
    before |= {state.name: "compute" for state in manifest.states}
    for name in drop:
        if name not in before:
            raise SubmitError(
                f"drop= names {name!r}, which checkpoint {manifest.number} lacks: choose from {sorted(before)}"
            )
        if now.get(name) == before[name]:
            raise SubmitError(
                f"drop= names {name!r}, with which the job continues: leave it out, or pass a topology= that lacks it, "
                "or has it under another name"
            )


def _kinds(summaries: tuple[ComponentSummary, ...]) -> dict[str, str]:
    """Return the kinds of sources, stateful operators and sinks by their names."""
    kinds = {summary.name: summary.kind for summary in summaries}
    return kinds | {compute.name: "compute" for summary in summaries for compute in summary.computes}


def _check_dropped(summaries: tuple[ComponentSummary, ...], manifest: Manifest, drop: Collection[str]) -> None:
    """Refuse to lose state, positions of sources, or what sinks have prepared, unless the user names it."""
    kinds = _kinds(summaries)
    held = {
        "compute": [state.name for state in manifest.states],
        "source": list(manifest.positions),
        "sink": [name for name, prepared in manifest.prepared.items() if any(prepared)],
    }
    lost = [name for kind, names in held.items() for name in names if kinds.get(name) != kind and name not in drop]
    if lost:
        listed = ", ".join(map(repr, lost))
        raise SubmitError(
            f"checkpoint {manifest.number} has {listed}, which the topology lacks. Name operators, sources and sinks "
            f"as before, or pass drop={lost!r}: their state, their positions and rows that are not committed are lost."
        )
