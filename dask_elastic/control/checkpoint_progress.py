"""The progress of one checkpoint: whose acknowledgement is missing; and which ends of a job await none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeVar

from dask_elastic.vocab.identity import ExecutorId

P = TypeVar("P")


class CheckpointProgress(Generic[P]):
    """What the instances of a job have acknowledged of one checkpoint.

    Parameters
    ----------
    number : int
        The checkpoint.
    instances : iterable of ExecutorId
        All sources, executors and sinks of the job.
    started : float
        When it began, seconds since the epoch.

    Attributes
    ----------
    parts : dict of ExecutorId to P
        What was acknowledged.

    Examples
    --------
    >>> source, sink = ExecutorId("flights", 0), ExecutorId("out", 0)
    >>> progress = CheckpointProgress(7, [source, sink], started=0.0)
    >>> progress.acknowledge(source, "offset 40"), progress.missing
    (False, {ExecutorId(component='out', index=0)})
    >>> progress.acknowledge(sink, "file 3")
    True
    """

    def __init__(self, number: int, instances: Iterable[ExecutorId], started: float):
        self.number = number
        self.started = started
        self.parts: dict[ExecutorId, P] = {}
        self._instances = frozenset(instances)

    @property
    def missing(self) -> set[ExecutorId]:
        """The instances that have not acknowledged it."""
        return set(self._instances - self.parts.keys())

    def acknowledge(self, instance: ExecutorId, part: P) -> bool:
        """Take an acknowledgement; returns whether the checkpoint is complete with it. A repeated one changes nothing.

        Raises
        ------
        KeyError
            If the job has no such instance.
        """
        if instance not in self._instances:
            raise KeyError(f"checkpoint {self.number}: {instance} is no instance of the job")
        if instance in self.parts:
            return False
        self.parts[instance] = part
        return len(self.parts) == len(self._instances)


def unsaved_ends(inputs: Mapping[str, Collection[str]], sinks: Collection[str]) -> frozenset[str]:
    """Return the components that may end before a checkpoint contains their last row.

    A sink ends once it has committed its last rows with a checkpoint, which contains all that is upstream of it. The
    others end with their last row.

    Parameters
    ----------
    inputs : mapping of str to collection of str
        The components upstream of each component.
    sinks : collection of str
        The components that are sinks.

    Returns
    -------
    frozenset of str
        The components without consumers that are no sinks.

    Examples
    --------
    >>> inputs = {"flights": (), "per_plane": ("flights",), "out": ("flights",)}
    >>> unsaved_ends(inputs, sinks={"out"})
    frozenset({'per_plane'})
    """
    consumed = {name for upstream in inputs.values() for name in upstream}
    return frozenset(inputs.keys() - consumed - set(sinks))
