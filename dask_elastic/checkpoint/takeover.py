"""Begins generations and completes checkpoints, so that of two schedulers of one job only the newer one commits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias, TypeVar

from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.generations import is_owned, newest_generation, next_generation, record_base, superseded
from dask_elastic.checkpoint.manifest import Manifest

R = TypeVar("R")
StorageSteps: TypeAlias = Generator[Callable[[], Any], Any, R]
"""Requests to storage, one after the other; each is sent what the one before it returned."""


def reserve_generation(
    catalog: Catalog, above: int = 0, owned: int | None = None, owner: str = ""
) -> StorageSteps[int]:
    """Reserve the number of a generation, of which nothing may start before `choose_checkpoint`.

    Parameters
    ----------
    catalog : Catalog
        The job's checkpoints.
    above : int, optional
        The generation is higher than this.
    owned : int, optional
        The newest generation of the scheduler that restarts the job. None if it is new to the job: then it continues
        the job in any case.
    owner : str, optional
        Identifies the scheduler and its run of the job: storage may reserve a generation and report a failure.

    Yields
    ------
    callable
        The next request to storage.

    Returns
    -------
    int
        The generation.

    Raises
    ------
    CheckpointSuperseded
        When another scheduler has continued the job.
    CheckpointError
        When storage fails.
    """
    if owned is not None:
        # Otherwise a lost scheduler would take the job back, and the two would do so in turns.
        yield from check_newest(catalog, owned, owner)
    generation: int = yield partial(next_generation, catalog.folder, above, owner, owned)
    return generation


def choose_checkpoint(catalog: Catalog, generation: int, known: int = 0, base: int | None = None) -> StorageSteps[int]:
    """Choose the checkpoint from which a reserved generation begins; afterwards it may start.

    Parameters
    ----------
    catalog : Catalog
        The job's checkpoints.
    generation : int
        The generation.
    known : int, optional
        The newest checkpoint that is known to be complete. A newer one is used if its manifest exists: storage may
        have written it and reported a failure.
    base : int, optional
        Begin from this checkpoint, 0 for none, whatever there is.

    Yields
    ------
    callable
        The next request to storage.

    Returns
    -------
    int
        The number of the checkpoint; 0 for none.

    Raises
    ------
    CheckpointSuperseded
        When another scheduler has reserved a later generation meanwhile.
    CheckpointError
        When storage fails.

    Examples
    --------
    >>> from dask_elastic.checkpoint.folder import CheckpointFolder
    >>> catalog = Catalog(CheckpointFolder("memory://takeover"))
    >>> generation = requested(reserve_generation(catalog))
    >>> generation, requested(choose_checkpoint(catalog, generation))
    (1, 0)
    """
    # Only now: what an earlier generation publishes later, it does not commit.
    checkpoint: int = base if base is not None else (yield partial(catalog.newest_from, known))
    yield partial(record_base, catalog.folder, generation, checkpoint)
    yield from check_newest(catalog, generation)
    return checkpoint


def complete_checkpoint(catalog: Catalog, manifest: Manifest) -> StorageSteps[None]:
    """Publish a manifest; afterwards sinks may commit.

    Parameters
    ----------
    catalog : Catalog
        The job's checkpoints.
    manifest : Manifest
        The manifest of a checkpoint whose files are all written.

    Yields
    ------
    callable
        The next request to storage.

    Raises
    ------
    CheckpointSuperseded
        When a later generation of the job has begun: sinks must not commit.
    CheckpointError
        When storage fails.
    """
    yield partial(catalog.publish, manifest)
    yield from check_newest(catalog, manifest.generation)


def check_newest(catalog: Catalog, generation: int, owner: str = "") -> StorageSteps[None]:
    """Check that no other scheduler has continued the job.

    Parameters
    ----------
    catalog : Catalog
        The job's checkpoints.
    generation : int
        The newest generation that the caller knows to be its own.
    owner : str, optional
        As for `reserve_generation`; later generations of this owner are no others.

    Yields
    ------
    callable
        The next request to storage.

    Raises
    ------
    CheckpointSuperseded
        When another scheduler has.
    CheckpointError
        When storage fails.
    """
    newest = yield partial(newest_generation, catalog.folder)
    if newest > generation and not (owner and (yield partial(is_owned, catalog.folder, newest, owner))):
        raise superseded(catalog.folder, newest, generation)


def requested(steps: StorageSteps[R]) -> R:
    """Send the requests one after the other in the calling thread, and return the result.

    Parameters
    ----------
    steps : generator
        The requests.

    Returns
    -------
    object
        What the generator returns.
    """
    answer: Any = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as ended:
            result: R = ended.value
            return result
        answer = request()
