"""Deletion of old checkpoints, and of files that no checkpoint needs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dask_elastic.checkpoint import manifest_file
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.dropped_sources import files_of_dropped
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.checkpoint.manifest import Manifest

MOST_DELETED = 1000


@dataclass(frozen=True)
class Swept:
    """What a sweep did.

    Parameters
    ----------
    deleted : int
        The number of files that it deleted.
    finished : bool
        Whether nothing was left; if not, the next sweep continues.
    """

    deleted: int
    finished: bool


def sweep(
    catalog: Catalog,
    keep: int = 2,
    most: int = MOST_DELETED,
    kept_from: int | None = None,
    running: Collection[str] | None = None,
) -> Swept:
    """Delete the checkpoints beyond the newest complete ones, and files that no checkpoint needs.

    Parameters
    ----------
    catalog : Catalog
        The checkpoints.
    keep : int, optional
        How many complete checkpoints to keep; savepoints are kept in addition.
    most : int, optional
        The most files to delete, which bounds the time of a sweep.
    kept_from : int, optional
        The number from which on all checkpoints are kept in addition.
    running : collection of str, optional
        The components of the job: what dropped sources had accepted is deleted too.

    Returns
    -------
    Swept
        How many files were deleted, and whether any are left.

    Raises
    ------
    CheckpointError
        When the storage fails, or a newer version of dask_elastic wrote a checkpoint.
    ValueError
        When `keep` is below 1.

    Notes
    -----
    Files of checkpoints that are newer than the newest complete one stay: such a checkpoint may be in progress.

    Examples
    --------
    >>> from dask_elastic.checkpoint.manifest import Manifest
    >>> catalog = Catalog(CheckpointFolder("memory://sweep"))
    >>> topology = catalog.folder.write("topology/1.pickle", [b"pickled"])
    >>> for number in range(1, 5):
    ...     catalog.publish(Manifest("delays", number, 1, 0.0, 0.5, topology))
    >>> sweep(catalog), catalog.numbers()
    (Swept(deleted=2, finished=True), [4, 3])
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: keep at least one checkpoint")
    kept = _kept(catalog, keep, kept_from)
    if not kept:
        return Swept(0, True)
    deleted = 0
    unneeded = _unneeded(catalog.folder, kept, newest=max(kept), oldest=_oldest(kept, keep))
    dropped = () if running is None else files_of_dropped(catalog.folder, kept.values(), running)
    for path in itertools.chain(unneeded, dropped):
        if deleted == most:
            return Swept(deleted, False)
        catalog.folder.delete(path)
        deleted += 1
    return Swept(deleted, True)


def _kept(catalog: Catalog, keep: int, kept_from: int | None) -> dict[int, Manifest]:
    kept: dict[int, Manifest] = {}
    newest = 0
    for manifest in catalog.complete():
        pinned = kept_from is not None and manifest.number >= kept_from
        if manifest.savepoint or pinned or newest < keep:
            kept[manifest.number] = manifest
        newest += not manifest.savepoint
    return kept


def _oldest(kept: dict[int, Manifest], keep: int) -> int:
    """Return the number below which only savepoints are kept."""
    numbers = sorted((number for number, manifest in kept.items() if not manifest.savepoint), reverse=True)
    return numbers[keep - 1] if len(numbers) >= keep else 0


def _unneeded(folder: CheckpointFolder, kept: dict[int, Manifest], newest: int, oldest: int) -> Iterator[str]:
    """Yield manifests first: a crash between two deletions leaves no manifest without its files."""
    for name in sorted(folder.sizes("manifests")):
        number = _number_in(name)
        if number is not None and number < oldest and number not in kept:
            yield f"manifests/{name}"
    needed = {file.path for manifest in kept.values() for file in manifest.files}
    needed |= {manifest_file.path_of(number) for number in kept}
    for parent in folder.folders("state"):
        if parent.isdecimal() and int(parent) < newest:
            yield from _others(folder, f"state/{parent}", needed)
    generation = kept[newest].generation
    for name in sorted(folder.sizes("topology")):
        number = _number_in(name)
        path = f"topology/{name}"
        if number is not None and number < generation and path not in needed:
            yield path


def _others(folder: CheckpointFolder, parent: str, needed: set[str]) -> Iterator[str]:
    paths = [f"{parent}/{name}" for name in sorted(folder.sizes(parent))]
    others = [path for path in paths if path not in needed]
    yield from others
    if others == paths:
        # The caller has deleted them by now.
        folder.delete_folder(parent)


def _number_in(name: str) -> int | None:
    found = re.search(r"\d+", name)
    return None if found is None else int(found[0])
