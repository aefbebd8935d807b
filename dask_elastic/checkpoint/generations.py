"""Generations of a job: numbers that no restart ever uses twice, also after the scheduler is lost.

Two schedulers may run one job for a while: a lost one that still works, and the one that continues the job. Each does
three things in this order. A new generation is reserved, then it chooses the checkpoint to begin from, writes that down
(`record_base`), and starts only if it is still the newest one. A coordinator publishes a manifest, and has sinks commit
only if its generation is still the newest one. So either the new generation finds the manifest, or the old one finds
the new generation: rows that the new generation replays are never committed by the old one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.vocab.errors import CheckpointError, CheckpointSuperseded

_FOLDER = "generations"
_KEPT = 16
_ATTEMPTS = 100
_END = ".ended"


def note_ended(folder: CheckpointFolder, generation: int) -> None:
    """Note that no part of a generation, nor of those before it, emits any more.

    Raises
    ------
    CheckpointError
        When that cannot be written.
    """
    folder.claim(f"{_FOLDER}/{generation:06d}{_END}")


def may_run(folder: CheckpointFolder, before: int | None = None) -> bool:
    """Return whether parts of the newest generation may still emit.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    before : int, optional
        The newest generation below this one; of all generations if left out.

    Returns
    -------
    bool
        False if there is no generation, or `note_ended` has noted its end.

    Examples
    --------
    >>> folder = CheckpointFolder("memory://may-run")
    >>> may_run(folder)
    False
    >>> generation = next_generation(folder)
    >>> may_run(folder)
    True
    >>> note_ended(folder, generation)
    >>> may_run(folder)
    False
    """
    names = folder.sizes(_FOLDER)
    reserved = (int(name) for name in names if name.isdecimal())
    newest = max((number for number in reserved if before is None or number < before), default=0)
    return newest > 0 and f"{newest:06d}{_END}" not in names


def next_generation(folder: CheckpointFolder, above: int = 0, owner: str = "", owned: int | None = None) -> int:
    """Reserve the number of a new generation, before anything of it starts.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    above : int, optional
        The generation is higher than this.
    owner : str, optional
        Who reserves it; see `is_owned`.
    owned : int, optional
        The newest generation of the caller, who only continues a job that no other scheduler has continued since.

    Returns
    -------
    int
        Higher than all generations of the job so far; no other call returns it, of whatever process.

    Raises
    ------
    CheckpointSuperseded
        When another scheduler has reserved a generation after `owned`, also at the same time.
    CheckpointError
        When the number cannot be written down, or other processes keep reserving numbers.

    Examples
    --------
    >>> folder = CheckpointFolder("memory://generations")
    >>> next_generation(folder), next_generation(folder)
    (1, 2)
    """
    names = folder.sizes(_FOLDER)
    reserved = sorted(int(name) for name in names if name.isdecimal())
    first = max([above, *reserved]) + 1
    for number in range(first, first + _ATTEMPTS):
        if folder.claim(f"{_FOLDER}/{number:06d}", owner):
            # Only the newest number matters; the others are deleted, so that listing them stays fast.
            forgotten = {f"{old:06d}" for old in reserved[:-_KEPT]}
            for name in sorted(names):
                if re.split("[-.]", name.removeprefix("."))[0] in forgotten:
                    folder.delete(f"{_FOLDER}/{name}")
            if owned is not None:
                _check_between(folder, owned, number, owner)
            return number
    raise CheckpointError(
        f"{folder.shown}: other processes have reserved {_ATTEMPTS} generations meanwhile. Give each job a folder of "
        "its own, and stop all schedulers but one."
    )


def _check_between(folder: CheckpointFolder, owned: int, reserved: int, owner: str) -> None:
    """Withdraw a reservation if another scheduler has reserved a generation before it, and after the owned one."""
    between = (int(name) for name in folder.sizes(_FOLDER) if name.isdecimal())
    for number in sorted(between):
        if owned < number < reserved and not (owner and is_owned(folder, number, owner)):
            # Otherwise the other scheduler would find this one, and neither would continue the job.
            folder.delete(f"{_FOLDER}/{reserved:06d}")
            raise superseded(folder, number, owned)


def superseded(folder: CheckpointFolder, newest: int, generation: int) -> CheckpointSuperseded:
    """Return the error for a scheduler whose job another one has continued."""
    return CheckpointSuperseded(
        f"{folder.shown}: another scheduler has continued the job as generation {newest}, this is generation "
        f"{generation}. Stop the job here; only the newest generation completes checkpoints."
    )


def is_owned(folder: CheckpointFolder, generation: int, owner: str) -> bool:
    """Return whether a generation was reserved by an owner.

    Storage may have reserved it although it reported a failure, or did so later.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    generation : int
        The generation.
    owner : str
        The owner, not empty.

    Returns
    -------
    bool
        Whether it is the owner's.

    Raises
    ------
    CheckpointError
        When the storage fails.

    Examples
    --------
    >>> folder = CheckpointFolder("memory://owners")
    >>> generation = next_generation(folder, owner="5f2c")
    >>> is_owned(folder, generation, "5f2c"), is_owned(folder, generation, "77aa")
    (True, False)
    """
    try:
        contents = folder.read_unchecked(f"{_FOLDER}/{generation:06d}").to_pybytes()
    except FileNotFoundError:
        return False
    return bool(contents.partition(b" ")[0] == owner.encode())


def newest_generation(folder: CheckpointFolder) -> int:
    """Return the newest generation that was reserved.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.

    Returns
    -------
    int
        Its number; 0 if there is none.

    Raises
    ------
    CheckpointError
        When the storage fails.
    """
    return max((int(name) for name in folder.sizes(_FOLDER) if name.isdecimal()), default=0)


def record_base(folder: CheckpointFolder, generation: int, checkpoint: int) -> None:
    """Write down from which checkpoint a generation begins: later ones of earlier generations are superseded.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    generation : int
        The generation, which nothing was started of yet.
    checkpoint : int
        The number of the checkpoint; 0 for none.

    Raises
    ------
    CheckpointError
        When it cannot be written.

    Examples
    --------
    >>> folder = CheckpointFolder("memory://bases")
    >>> record_base(folder, next_generation(folder), 0)
    >>> record_base(folder, next_generation(folder), 7)
    >>> bases = recorded_bases(folder)
    >>> bases
    {1: 0, 2: 7}
    >>> is_superseded(bases, generation=1, checkpoint=7), is_superseded(bases, generation=1, checkpoint=8)
    (False, True)
    """
    folder.claim(f"{_FOLDER}/{generation:06d}-from-{checkpoint:06d}")


def recorded_bases(folder: CheckpointFolder) -> dict[int, int]:
    """Return the checkpoints from which the newest generations began, by generation.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.

    Returns
    -------
    dict of int to int
        The number of the checkpoint by generation; generations that never started are left out.

    Raises
    ------
    CheckpointError
        When the storage fails.
    """
    found = (re.fullmatch(r"(\d+)-from-(\d+)", name) for name in sorted(folder.sizes(_FOLDER)))
    return {int(match[1]): int(match[2]) for match in found if match is not None}


def is_superseded(bases: Mapping[int, int], generation: int, checkpoint: int) -> bool:
    """Whether a later generation has begun from an earlier checkpoint, so that this one must not be used.

    The later generation replays rows that the checkpoint covers, and has deleted what sinks had prepared for it. This
    does not hold if a still later one has begun from the checkpoint.

    Parameters
    ----------
    bases : mapping of int to int
        From which checkpoint each generation began; see `recorded_bases`.
    generation : int
        The generation that took the checkpoint.
    checkpoint : int
        The number of the checkpoint.

    Returns
    -------
    bool
        Whether it is superseded.
    """
    # A record that storage has written late, of a generation that never started, supersedes nothing that a later
    # generation has begun from: that one would have found the record of a generation that has started.
    return any(
        later > generation
        and base < checkpoint
        and not any(number > later and begun == checkpoint for number, begun in bases.items())
        for later, base in bases.items()
    )
