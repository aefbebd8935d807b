"""Calls about the checkpoints of a job: of workers and of clients to the scheduler."""

from __future__ import annotations

from dask_elastic.runtime.protocol.calls import Call


class CheckpointCall(Call[None]):
    """What a worker says about a checkpoint; the scheduler ignores it if the generation has ended.

    Parameters
    ----------
    job : str
        The job.
    generation : int
        The generation of the job that the worker hosts.
    """

    job: str
    generation: int


class Acknowledge(CheckpointCall):
    """An instance has made its part of a checkpoint durable.

    Parameters
    ----------
    number : int
        The checkpoint.
    component : str
        The source, operator or sink.
    instance : int
        Which instance of it.
    part : bytes
        Its part, pickled: the position of a source, the files of an executor's state, or what a sink has prepared.
    """

    number: int
    component: str
    instance: int
    part: bytes


class Committed(CheckpointCall):
    """An instance of a sink has committed what it had prepared up to a complete checkpoint.

    Parameters
    ----------
    number : int
        The checkpoint.
    component : str
        The sink.
    instance : int
        Which instance of it.
    """

    number: int
    component: str
    instance: int


class SinkOpened(CheckpointCall):
    """A writer of a sink has opened, before there was a checkpoint: what it does at the first start is done.

    Parameters
    ----------
    component : str
        The sink.
    """

    component: str


class CheckpointFailed(CheckpointCall):
    """An instance could not make its part of a checkpoint durable.

    Parameters
    ----------
    number : int
        The checkpoint.
    error : bytes
        The error; see `remote_errors`.
    """

    number: int
    error: bytes


class RequestCheckpoint(CheckpointCall):
    """A sink waits for a checkpoint to commit its last rows: take one as soon as possible."""
