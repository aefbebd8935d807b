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
    chain = _chain(error, ())
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


def _chain(error: BaseException, above: tuple[BaseException, ...]) -> list[BaseException]:
    """Return an error and those that a traceback shows above it, newest first, without those of its groups."""
    chain: list[BaseException] = []
    before: BaseException | None = error
    # By identity, since errors may be equal: the errors before an error may lead to it again.
    while before is not None and all(before is not one for one in (*above, *chain)):
        chain.append(before)
        before = before.__cause__ if before.__suppress_context__ else before.__context__
    return chain


def _text(error: BaseException, above: tuple[BaseException, ...] = ()) -> str:
    """Return what a traceback ends with, in groups with what those of their errors, and of those before, end with."""
    groups = (*above, error)
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    within = [_text(one, groups) for member in members for one in _chain(member, groups)]
    return "\n".join(["".join(traceback.format_exception_only(error)).strip(), *within])
