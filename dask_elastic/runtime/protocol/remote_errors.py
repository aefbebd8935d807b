"""Errors on their way between processes: pickled where they arise, raised again where they are wanted."""

from __future__ import annotations

import pickle

import cloudpickle

from dask_elastic.vocab.errors import ElasticError, JobFailed


class Relayed(Exception):
    """An error that came as bytes and goes on as bytes: who passes it on need not know its class.

    Parameters
    ----------
    data : bytes
        What `dump_error` made of it.
    """

    def __init__(self, data: bytes):
        super().__init__("an error of another process")
        self.data = data


def dump_error(error: BaseException) -> bytes:
    """Return an error as bytes; one that cannot be pickled goes as its text."""
    if isinstance(error, Relayed):
        return error.data
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception as reason:  # any class of a user's may fail to pickle in any way; its text is what is left
        data = pickle.dumps(JobFailed(f"{type(error).__name__}: {error} (the error itself cannot be sent: {reason!r})"))
    return data


def load_error(data: bytes) -> BaseException:
    """Return the inverse of `dump_error`, on the client."""
    error = pickle.loads(data)
    return error if isinstance(error, BaseException) else ElasticError(str(error))
