"""The executors of key groups with which a job begins that continues from a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import OperatorState
from dask_elastic.routing.group_table import GroupTable
from dask_elastic.runtime.protocol.job_spec import JobSpec
from dask_elastic.vocab.errors import CheckpointError


def with_saved_groups(spec: JobSpec) -> JobSpec:
    """Return the spec of a job with the owners of its key groups at the checkpoint that it starts from; may block.

    Parameters
    ----------
    spec : JobSpec
        The job. One whose groups do not move, or that starts without a checkpoint, is returned as it is.

    Raises
    ------
    CheckpointError
        If the checkpoint cannot be read, or does not say which executor owned which groups.
    """
    if not spec.groups or spec.checkpoint is None or not spec.checkpoint.number:
        return spec
    manifest = Catalog(CheckpointFolder(spec.checkpoint.url)).load(spec.checkpoint.number)
    states = {state.name: state for state in manifest.states}
    # An operator that was added to the topology has no state yet.
    saved = {name: _owners(spec, name, states[name]) for name in spec.groups if name in states}
    return replace(spec, groups={**spec.groups, **saved})


def _owners(spec: JobSpec, operator: str, state: OperatorState) -> tuple[int, ...]:
    homes, shards = spec.homes[operator], len(spec.groups[operator])
    if not state.owned or state.shards != shards:
        raise CheckpointError(
            f"the state of {operator!r} has {state.shards} shards in each of {state.executors} executors, of which "
            f"{len(state.owned)} own key groups: it cannot continue with {shards} key groups of {len(homes)} executors"
        )
    table = GroupTable.of_parts if len(state.owned) == len(homes) else GroupTable.spread
    return tuple(table(shards, homes, dict(enumerate(state.owned))).owners.tolist())
