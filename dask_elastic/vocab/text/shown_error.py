"""Errors of libraries as tracebacks show them: their texts contain the URLs that they were given."""

from __future__ import annotations

import traceback

from dask_elastic.vocab.text.shown_url import shown_url


class ShownError(Exception):
    """In a traceback, stands for the error of a library whose text contains a password."""


def shown_error(error: BaseException) -> BaseException:
    """Return what to raise another error from, so that the traceback shows no password.

    Parameters
    ----------
    error : BaseException
        The error of a library.

    Returns
    -------
    BaseException
        The same if no password is shown with it; otherwise one with its type as text, its traceback, and what was
        raised before it.

    Examples
    --------
    >>> missing = FileNotFoundError("/checkpoints")
    >>> shown_error(missing) is missing
    True
    >>> shown_error(OSError("no route to sftp://user:secret@host/checkpoints"))
    ShownError('OSError: no route to sftp://user:***@host/checkpoints')
    """
    chain: list[BaseException] = [error]
    # By identity, since errors may be equal: the errors before an error may lead to it again.
    while (before := _before(chain[-1])) is not None and all(before is not one for one in chain):
        chain.append(before)
    texts = [*map(_text, chain)]
    if all(shown_url(text) == text for text in texts):
        return error
    shown = [
        ShownError(shown_url(text)).with_traceback(one.__traceback__) for one, text in zip(chain, texts, strict=True)
    ]
    for one, after, before in zip(chain, shown, shown[1:], strict=False):
        if one.__cause__ is None:
            after.__context__ = before
        else:
            after.__cause__ = before
    return shown[0]


def _text(error: BaseException) -> str:
    """Return what a traceback ends with, in groups with what those of their errors end with."""
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "\n".join(["".join(traceback.format_exception_only(error)).strip(), *map(_text, within)])


def _before(error: BaseException) -> BaseException | None:
    """Return the error that a traceback shows above this one."""
    return error.__cause__ if error.__suppress_context__ else error.__context__
