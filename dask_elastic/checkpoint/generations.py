"""Generations of a job: numbers that no restart ever uses twice, also after the scheduler is lost."""

from __future__ import annotations

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.vocab.errors import CheckpointError

_FOLDER = "generations"
_KEPT = 16
_ATTEMPTS = 100


def next_generation(folder: CheckpointFolder, above: int = 0) -> int:
    """Reserve the number of a new generation, before anything of it starts.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.
    above : int, optional
        The generation is higher than this.

    Returns
    -------
    int
        Higher than all generations of the job so far; no other call returns it, of whatever process.

    Raises
    ------
    CheckpointError
        When the number cannot be written down, or other processes keep reserving numbers.

    Examples
    --------
    >>> folder = CheckpointFolder("memory://generations")
    >>> next_generation(folder), next_generation(folder)
    (1, 2)
    """
    reserved = sorted(int(name) for name in folder.sizes(_FOLDER) if name.isdecimal())
    first = max([above, *reserved]) + 1
    for number in range(first, first + _ATTEMPTS):
        if folder.claim(f"{_FOLDER}/{number:06d}"):
            # Only the newest number matters; the others are deleted, so that listing them stays fast.
            for old in reserved[:-_KEPT]:
                folder.delete(f"{_FOLDER}/{old:06d}")
            return number
    raise CheckpointError(
        f"{folder.url}: other processes have reserved {_ATTEMPTS} generations meanwhile. Give each job a folder of its "
        "own, and stop all schedulers but one."
    )


def newest_generation(folder: CheckpointFolder) -> int:
    """Return the newest generation that was reserved; 0 if there is none.

    Parameters
    ----------
    folder : CheckpointFolder
        The job's folder.

    Returns
    -------
    int
        The generation, which may not have started yet.

    Raises
    ------
    CheckpointError
        When the folder cannot be listed.

    Examples
    --------
    >>> folder = CheckpointFolder("memory://newest-generation")
    >>> next_generation(folder), newest_generation(folder)
    (1, 1)
    """
    return max((int(name) for name in folder.sizes(_FOLDER) if name.isdecimal()), default=0)
