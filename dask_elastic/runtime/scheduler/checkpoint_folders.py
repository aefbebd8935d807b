"""Folders of checkpoints as the scheduler opens them; all of this may block, so it runs in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.generations import next_generation
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.vocab.errors import SubmitError

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run something that may block away from the event loop of the scheduler."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def open_checkpoints(url: str, components: bytes, above: int) -> tuple[JobCheckpoints, int]:
    """Prepare a folder for the checkpoints of a new job.

    Parameters
    ----------
    url : str
        The folder.
    components : bytes
        The pickled components, which are written there.
    above : int
        The newest generation of any job that this scheduler knows.

    Returns
    -------
    JobCheckpoints
        The job's checkpoints.
    int
        The job's first generation.

    Raises
    ------
    CheckpointError
        If the folder cannot be written.
    SubmitError
        If it has checkpoints already.
    """
    folder = CheckpointFolder(url)
    folder.check_writable()
    catalog = Catalog(folder)
    if numbers := catalog.numbers():
        raise SubmitError(
            f"checkpoint={url!r}: the folder has checkpoints of an earlier run, up to {numbers[0]}. Continue it with "
            "dask_elastic.resume, or give this run another folder."
        )
    generation = reserve_generation(url, above)
    topology = folder.write(f"topology/{generation:06d}.pickle", [components])
    return JobCheckpoints(url, topology, catalog.next_number() - 1), generation


def reserve_generation(url: str, above: int) -> int:
    """Reserve the next generation of a job, which no restart of it uses again.

    Parameters
    ----------
    url : str
        The folder.
    above : int
        The generation is higher than this.
    """
    folder = CheckpointFolder(url)
    while (generation := next_generation(folder)) <= above:
        continue
    return generation
