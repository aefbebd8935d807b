"""Errors between processes: pickled in the process that raises them, raised again in the one that called it."""

from __future__ import annotations

import pickle

import cloudpickle

from dask_elastic.vocab.errors import ElasticError, JobFailed


class Relayed(Exception):
    """An error of another process as bytes, so that a process that forwards it does not need its class.

    Parameters
    ----------
    data : bytes
        The error, as `dump_error` returns it.
    """

    def __init__(self, data: bytes):
        super().__init__("an error of another process")
        self.data = data


def dump_error(error: BaseException) -> bytes:
    """Return an error as bytes; one that cannot be pickled becomes a `JobFailed` with its text."""
    if isinstance(error, Relayed):
        return error.data
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception as reason:  # a user's class may fail to pickle in any way
        data = pickle.dumps(JobFailed(f"{type(error).__name__}: {error} (the error itself cannot be sent: {reason!r})"))
    return data


def load_error(data: bytes) -> BaseException:
    """Return the inverse of `dump_error`, on the client."""
    error = pickle.loads(data)
    return error if isinstance(error, BaseException) else ElasticError(str(error))


def cause_of(error: Exception) -> BaseException:
    """Return the error that a worker has relayed, or any other error as it is."""
    return load_error(error.data) if isinstance(error, Relayed) else error


def error_text(data: bytes) -> str:
    """Return the text of a job's pickled error, even if its class is not installed here."""
    try:
        error = load_error(data)
    except Exception as problem:  # unpickling runs code of the error's class, which may raise anything
        return f"an error that cannot be unpickled here ({type(problem).__name__}: {problem})"
    return str(error) or type(error).__name__
