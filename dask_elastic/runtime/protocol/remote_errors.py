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
        super().__init__(data)
        self.data = data

    def __str__(self) -> str:
        return error_text(self.data)


def dump_error(error: BaseException) -> bytes:
    """Return an error as bytes; one that cannot be pickled becomes a `JobFailed` with its text."""
    if isinstance(error, Relayed):
        return error.data
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception as reason:  # a user's class may fail to pickle in any way
        kind, text = type(error).__name__, text_of(error)
        said = text if text.startswith(kind) else f"{kind}: {text}"
        data = pickle.dumps(JobFailed(f"{said} (the error itself cannot be sent: {reason!r})"))
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
    return text_of(error)


def text_of(error: BaseException) -> str:
    """Return the text of an error; the name of its class if it has none.

    Parameters
    ----------
    error : BaseException
        Of this process, or as another one relays it.

    Examples
    --------
    >>> text_of(ValueError("a delay of -5")), text_of(TimeoutError())
    ('a delay of -5', 'TimeoutError')
    """
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as problem:  # a user's class may raise anything
        return f"{kind}, whose text cannot be made: {type(problem).__name__}"
    return text if text.strip() else kind
