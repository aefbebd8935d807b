"""Folders of checkpoints as the scheduler opens them; all of this may block, so it runs in threads."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import GenerationStart, may_run, next_generation, note_start
from dask_elastic.runtime.protocol.job_calls import Submit
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.vocab.errors import SubmitError

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run something that may block away from the event loop of the scheduler."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


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
    SubmitError
        If it has checkpoints already, and the job does not continue one.
    """
    folder = CheckpointFolder(url)
    folder.check_writable()
    catalog = Catalog(folder)
    if call.resume is None and (numbers := catalog.numbers()):
        raise SubmitError(
            f"checkpoint={url!r}: the folder has checkpoints of an earlier run, up to {numbers[0]}. Continue it with "
            "dask_elastic.resume, or give this run another folder."
        )
    awaits_leases = may_run(folder)
    newest = call.resume or 0
    generation = reserve_generation(url, above, newest)
    topology = folder.write(f"topology/{generation:06d}.pickle", [pickle.dumps(call)])
    return OpenedFolder(JobCheckpoints(url, topology, catalog.next_number() - 1, newest), generation, awaits_leases)


def reserve_generation(url: str, above: int, checkpoint: int) -> int:
    """Reserve the next generation of a job, which no restart of it uses again.

    Parameters
    ----------
    url : str
        The folder.
    above : int
        The generation is higher than this.
    checkpoint : int
        The checkpoint from which it continues.
    """
    folder = CheckpointFolder(url)
    generation = next_generation(folder, above)
    note_start(folder, GenerationStart(generation, checkpoint))
    return generation
