"""Generations of a job: numbers that no restart ever uses twice, also after the scheduler is lost."""

from __future__ import annotations

import re
from typing import NamedTuple

from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.vocab.errors import CheckpointError

_FOLDER = "generations"
_KEPT = 16
_ATTEMPTS = 100
_START = re.compile(r"(\d+)\.from-(\d+)")
_END = ".ended"


class GenerationStart(NamedTuple):
    """The start of a generation.

    Parameters
    ----------
    generation : int
        The generation; 0 if none has started.
    checkpoint : int
        The checkpoint from which it continues.
    """

    generation: int = 0
    checkpoint: int = 0

    def replaces(self, generation: int, checkpoint: int) -> bool:
        """Whether a checkpoint of a generation is void: this start has replaced it by an earlier one.

        A manifest may appear after its checkpoint was given up, if the storage did not answer in time. What its
        checkpoint needs may have been deleted since.
        """
        return generation < self.generation and checkpoint > self.checkpoint


def newest_start(folder: CheckpointFolder) -> GenerationStart:
    """Return the newest start of a generation that `note_start` has noted."""
    found = (_START.fullmatch(name) for name in folder.sizes(_FOLDER))
    return max((GenerationStart(int(start[1]), int(start[2])) for start in found if start), default=GenerationStart())


def note_start(folder: CheckpointFolder, start: GenerationStart) -> None:
    """Note from which checkpoint a generation continues, before anything of it starts.

    Raises
    ------
    CheckpointError
        When that cannot be written.
    """
    folder.claim(f"{_FOLDER}/{start.generation:06d}.from-{start.checkpoint}")


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
    names = folder.sizes(_FOLDER)
    reserved = sorted(int(name) for name in names if name.isdecimal())
    first = max([above, *reserved]) + 1
    for number in range(first, first + _ATTEMPTS):
        if folder.claim(f"{_FOLDER}/{number:06d}"):
            # Only the newest number matters; the others are deleted, so that listing them stays fast.
            dropped = {f"{old:06d}" for old in reserved[:-_KEPT]}
            for name in names:
                if name.partition(".")[0] in dropped:
                    folder.delete(f"{_FOLDER}/{name}")
            return number
    raise CheckpointError(
        f"{folder.url}: other processes have reserved {_ATTEMPTS} generations meanwhile. Give each job a folder of its "
        "own, and stop all schedulers but one."
    )
