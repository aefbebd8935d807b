"""Copies of a checkpoint in another folder: savepoints, and what a job that continues from one begins with."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from dask_elastic.checkpoint.accepted import copy_accepted
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder, parts_of
from dask_elastic.checkpoint.manifest import Manifest
from dask_elastic.vocab.errors import CheckpointCorrupt, CheckpointError

logger = logging.getLogger("dask_elastic.checkpoint")


def check_empty(folder: CheckpointFolder) -> None:
    """Check that a folder can be written and has no checkpoint; called before a savepoint is taken.

    Parameters
    ----------
    folder : CheckpointFolder
        The folder of the copy.

    Raises
    ------
    CheckpointError
        When it cannot be written, or has a checkpoint.
    """
    numbers = Catalog(folder).numbers()
    if numbers:
        raise CheckpointError(f"{folder.shown} has checkpoint {numbers[0]} already. Give each savepoint a new folder.")
    folder.check_writable()


def copy_checkpoint(
    source: CheckpointFolder,
    manifest: Manifest,
    target: CheckpointFolder,
    savepoint: bool,
    topology: FileRef | None = None,
    accepted: Iterable[tuple[FileRef | str, str]] = (),
    generation: int | None = None,
) -> None:
    """Copy a checkpoint, of which the sinks have committed everything, into a folder without checkpoints.

    Files are read one at a time and compared with their checksums; the manifest is written last. If this fails, what
    was copied is deleted, as far as possible, unless storage may have the manifest, or may write it later.

    Parameters
    ----------
    source : CheckpointFolder
        The folder with the checkpoint.
    manifest : Manifest
        The checkpoint.
    target : CheckpointFolder
        The folder of the copy. Files that an interrupted copy has left there are used.
    savepoint : bool
        Whether the copy is a savepoint, into whose folder no job writes.
    topology : FileRef, optional
        The topology of the job that continues from the copy, in its folder; that of the checkpoint is copied if left
        out.
    accepted : iterable of tuple of (FileRef or str) and str
        Files with rows that sources have accepted, and their paths in the folder of the copy; see `copy_accepted`.
    generation : int, optional
        The generation of the job that continues from the copy.

    Raises
    ------
    CheckpointError
        When a file cannot be read or written.

    Examples
    --------
    >>> source, target = (CheckpointFolder(f"memory://copied/{name}") for name in ("job", "savepoint"))
    >>> topology = source.write("topology/1.pickle", [b"pickled"])
    >>> copy_checkpoint(source, Manifest("delays", 7, 1, 0.0, 0.5, topology), target, savepoint=True)
    >>> copy = Catalog(target).load()
    >>> copy.number, copy.savepoint, target.read(copy.topology).to_pybytes()
    (7, True, b'pickled')
    """
    # What is prepared is committed, and names files and tables of the run that ends with the copy.
    copied = replace(manifest, topology=topology or manifest.topology, savepoint=savepoint, prepared={}, accepted=())
    if generation is not None:
        # A generation whose copy failed may have begun from another savepoint: it does not supersede this one.
        copied = replace(copied, generation=generation)
    written: list[str] = []
    try:
        for file in copied.files:
            if not _is_copied(file, target):
                target.write(file.path, parts_of(source.open(file)), file.rows)
                written.append(file.path)
        files = []
        for accepted_file, path in accepted:
            # Before it is copied: storage may have it although it reports a failure, and a job would find it.
            written.append(path)
            files.append(copy_accepted(source, accepted_file, target, path))
    except BaseException:
        _delete(target, written)
        raise
    try:
        # The spool of a running job changes; its sources check it when they read it.
        Catalog(target).publish(replace(copied, accepted=tuple(files)) if savepoint else copied)
    except BaseException as error:
        if _may_appear(target, copied.number, error):
            logger.warning("the files of a copy that failed stay in %s, which may have its manifest", target.shown)
        else:
            _delete(target, written)
        raise


def _may_appear(target: CheckpointFolder, number: int, error: BaseException) -> bool:
    """Return whether storage may have the manifest of a copy, or write it later, although it reported a failure."""
    if isinstance(error.__cause__, TimeoutError):
        return True
    try:
        return number in Catalog(target).numbers()
    except CheckpointError:
        return True


def _delete(target: CheckpointFolder, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            target.delete(path)
        except CheckpointError as error:
            logger.warning("a file of a savepoint that failed stays in %s: %s", target.shown, error)


def _is_copied(file: FileRef, target: CheckpointFolder) -> bool:
    with suppress(CheckpointCorrupt):
        target.open(file)
        return True
    return False
