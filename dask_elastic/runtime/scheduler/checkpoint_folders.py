"""Folders of checkpoints as the scheduler opens them; all of this may block, so it runs in threads."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from dask_elastic.checkpoint.accepted import continued
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.copied import copy_checkpoint
from dask_elastic.checkpoint.dropped_sources import forget_namesakes
from dask_elastic.checkpoint.epoch_spool import Covered
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import may_run
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.checkpoint.takeover import (
    check_newest,
    choose_checkpoint,
    complete_checkpoint,
    requested,
    reserve_generation,
)
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.scheduler.epoch_ledger import LedgerSnapshot
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.runtime.scheduler.spooled_ledger import open_ledgers, with_ledgers
from dask_elastic.vocab.errors import SubmitError

T = TypeVar("T")

STORAGE_THREADS = 64
"""Each job waits for storage in a few threads at most."""

# Those of the event loop are fewer, and resolve the names of hosts as well: the storage of some jobs may hang.
_THREADS = ThreadPoolExecutor(STORAGE_THREADS, thread_name_prefix="elastic-storage")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run something that may block away from the event loop of the scheduler.

    Also the constructor of `CheckpointFolder` may block: file systems may connect in theirs.
    """
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function, *arguments)


def place_of(url: str) -> str:
    """Return the same for all spellings of one folder; raises `CheckpointError` if no library supports its URL."""
    return CheckpointFolder(url).place()


class OpenedFolder(NamedTuple):
    """A folder for the checkpoints of a job that starts.

    Parameters
    ----------
    checkpoints : JobCheckpoints
        The job's checkpoints.
    generation : int
        The job's first generation.
    awaits_leases : bool
        Whether parts of an earlier generation may still emit: their leases may not be over.
    """

    checkpoints: JobCheckpoints
    generation: int
    awaits_leases: bool


def open_checkpoints(url: str, call: Submit, above: int) -> OpenedFolder:
    """Prepare a folder for the checkpoints of a job that starts.

    Parameters
    ----------
    url : str
        The folder.
    call : Submit
        The job, which is written there; `dask_elastic.resume` reads it.
    above : int
        The newest generation of any job that this scheduler knows.

    Returns
    -------
    OpenedFolder
        The job's checkpoints, and its generation.

    Raises
    ------
    CheckpointError
        If the folder cannot be written.
    CheckpointCorrupt
        If the record of an epoch that Spark has committed is damaged.
    SubmitError
        If it has checkpoints already, and the job does not continue one.
    """
    folder = CheckpointFolder(url)
    folder.check_writable()
    catalog = Catalog(folder)
    if call.resume is None and (numbers := catalog.numbers()):
        raise SubmitError(
            f"checkpoint={folder.shown!r}: the folder has checkpoints of an earlier run, up to {numbers[0]}. Continue "
            "it with dask_elastic.resume, or give this run another folder."
        )
    names = [summary.name for summary in call.summaries if summary.spooled]
    source = None if call.savepoint is None else CheckpointFolder(call.savepoint)
    saved = None if source is None else _continued(call, source, folder)
    owner = uuid.uuid4().hex
    least = above if saved is None else max(above, saved.generation)
    generation = requested(reserve_generation(catalog, least, owner=owner))
    # Only now: another scheduler may have begun a generation until then.
    awaits_leases = may_run(folder, generation)
    requested(choose_checkpoint(catalog, generation, base=call.resume or 0))
    if source is None and call.resume is not None:
        # As in a restart: the name of its manifest may not be durable yet, and sinks are about to commit.
        catalog.make_durable()
        forget_namesakes(catalog, catalog.load(call.resume), call.run, names)
    topology = folder.write(f"topology/{generation:06d}.pickle", [pickle.dumps(call)])
    if source is not None and saved is not None:
        # With the topology of this job: another resumption from the copy continues this run, not that of the savepoint.
        accepted = continued(saved.accepted, call.run, names)
        copy_checkpoint(source, saved, folder, False, topology, accepted, generation)
    checkpoints = JobCheckpoints(url, topology, catalog.next_number() - 1, call.resume or 0, generation, owner)
    checkpoints.ledgers = open_ledgers(folder, call)
    return OpenedFolder(checkpoints, generation, awaits_leases)


def _continued(call: Submit, source: CheckpointFolder, folder: CheckpointFolder) -> Manifest:
    """Return the savepoint from which a job continues, whose own folder must have no checkpoint."""
    numbers = Catalog(folder).numbers()
    if numbers:
        raise SubmitError(
            f"checkpoint={folder.shown!r}: the folder has checkpoints already, up to {numbers[0]}. Continue from these "
            f"with dask_elastic.resume({folder.shown!r}), or give another folder."
        )
    return Catalog(source).load(call.resume)


def next_generation(url: str, above: int, owned: int, owner: str) -> int:
    """Reserve the next generation of a job that restarts.

    Parameters
    ----------
    url : str
        The folder.
    above : int
        The generation is higher than this.
    owned : int
        The newest generation that this scheduler has reserved for the job.
    owner : str
        Identifies this run of the job.

    Raises
    ------
    CheckpointSuperseded
        If another scheduler has continued the job.
    CheckpointError
        If storage fails.
    """
    return requested(reserve_generation(Catalog(CheckpointFolder(url)), above, owned, owner))


def check_owned(state: JobCheckpoints) -> None:
    """Check that no other scheduler has continued a job.

    Parameters
    ----------
    state : JobCheckpoints
        The job's checkpoints.

    Raises
    ------
    CheckpointSuperseded
        If another scheduler has.
    CheckpointError
        If storage fails.
    """
    requested(check_newest(Catalog(CheckpointFolder(state.url)), state.reserved, state.owner))


def next_start(url: str, generation: int, known: int) -> int:
    """Return the checkpoint from which a reserved generation begins.

    Parameters
    ----------
    url : str
        The folder.
    generation : int
        The generation.
    known : int
        The newest checkpoint that is known to be complete.

    Raises
    ------
    CheckpointSuperseded
        If another scheduler has continued the job.
    CheckpointError
        If storage fails.
    """
    return requested(choose_checkpoint(Catalog(CheckpointFolder(url)), generation, known))


def complete(url: str, manifest: Manifest, snapshots: Mapping[str, LedgerSnapshot]) -> dict[str, Covered]:
    """Publish the manifest of a checkpoint.

    Parameters
    ----------
    url : str
        The folder.
    manifest : Manifest
        The manifest, without the ledgers.
    snapshots : mapping of str to LedgerSnapshot
        By source, its ledger when the manifest was made.

    Returns
    -------
    dict of str to Covered
        By source, what the checkpoint covers of its ledger.

    Raises
    ------
    CheckpointError
        If storage fails, or another scheduler continues the job: the checkpoint must not be committed.
    """
    manifest, covered = with_ledgers(manifest, snapshots)
    requested(complete_checkpoint(Catalog(CheckpointFolder(url)), manifest))
    return covered
