"""Barriers: the control records of checkpoints, in band with the tuples."""

from __future__ import annotations

from dataclasses import dataclass

from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True, slots=True)
class Barrier:
    """What `origin` has sent before it belongs to the checkpoint, what it sends after it does not.

    Parameters
    ----------
    origin : ExecutorId
        The upstream instance that sends it.
    checkpoint : int
        The number of the checkpoint.

    Notes
    -----
    Flink's checkpoint barriers (Carbone et al., Lightweight Asynchronous Snapshots for Distributed Dataflows).
    """

    origin: ExecutorId
    checkpoint: int
