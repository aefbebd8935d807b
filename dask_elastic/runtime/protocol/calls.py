"""Typed calls between processes: the class of a call determines the type of its answer.

A call class names an operation. Its fields are the arguments, and its type parameter is the type of the answer, so that
mypy checks both ends: ``await calls.one(address, MoveShard(...))`` has the type of the answer, and
``MoveShard.handled_by`` takes only a method that accepts a `MoveShard` and returns that type. For Dask's RPC a call is
the operation ``elastic_<class name in snake case>`` with the fields as named arguments.
"""

from __future__ import annotations

import logging
import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from dask_elastic._version import __version__
from dask_elastic.runtime.protocol.codec import Codec, codec, fields, once_per_type
from dask_elastic.runtime.protocol.remote_errors import dump_error, load_error
from dask_elastic.vocab.errors import VersionMismatch
from dask_elastic.vocab.shared_methods import SharedMethods

logger = logging.getLogger("dask_elastic.calls")

A = TypeVar("A")
B = TypeVar("B")

UNREADABLE = (TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What decoding raises when a message has another shape than its type."""

HOSTED = "dask_elastic"
"""Key of the version in the metadata of a scheduler that hosts dask_elastic.

Clients look there first: of an operation that it does not know, Dask's scheduler logs a traceback.
"""

Handler = Callable[..., Awaitable[dict[str, Any]]]
"""What Dask calls for an operation, with its named arguments."""


class Call(SharedMethods, Generic[A]):
    """A request to another process whose answer has the type `A`.

    Subclasses are frozen dataclasses, one for each operation: ``class Stop(Call[None])``.

    Attributes
    ----------
    operation : str
        The name under which Dask's servers know the call.

    Notes
    -----
    There are so many calls that to generate the methods of each, as `dataclasses` does, would take a fourth of the time
    that a process needs to import the engine. They share those of `SharedMethods`.
    """

    if TYPE_CHECKING:
        # At run time it would be one of the fields, in which calls differ.
        operation: ClassVar[str]

    def __init_subclass__(cls, **named: Any):
        super().__init_subclass__(**named)
        cls.operation = "elastic_" + re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def handled_by(cls, method: Callable[[Self], Awaitable[A]]) -> HandledCall:
        """Pair the call with the method that answers it in this process."""
        return HandledCall(cls, method)


@dataclass(frozen=True)
class HandledCall:
    """A call class and the method that answers it.

    Parameters
    ----------
    call : type of Call
        The class.
    method : callable
        Takes a call of this class and returns the answer.
    """

    call: type[Call[Any]]
    method: Callable[[Any], Awaitable[Any]]


class Ask(Protocol):
    """Sends a call from a thread, waits, and returns the answer; raises the error that the handler raised."""

    def __call__(self, call: Call[B], /) -> B:
        """Send the call."""


class Version(Call[str]):
    """Return the version of dask_elastic that runs in the process; the same in every version."""


# both ends of a call


def message_of(call: Call[Any]) -> dict[str, Any]:
    """Return the named arguments of a call as plain values.

    Examples
    --------
    >>> class MoveShard(Call[None]):
    ...     job: str
    ...     shard: int
    >>> message_of(MoveShard("words", 3))
    {'job': 'words', 'shard': 3}
    """
    return {
        name: getattr(call, name) if convert.encode is None else convert.encode(getattr(call, name))
        for name, convert in zip(*fields(type(call)), strict=True)
    }


def read_call(kind: type[Call[Any]], message: Mapping[str, Any]) -> Call[Any]:
    """Return the inverse of `message_of`.

    Raises
    ------
    VersionMismatch
        If the arguments are not those of the call: another version of dask_elastic sent it.
    """
    names, codecs = fields(kind)
    try:
        if len(message) != len(names):
            raise ValueError(f"the arguments are {sorted(message)}, and {sorted(names)} are expected")
        values = [
            message[name] if convert.decode is None else convert.decode(message[name])
            for name, convert in zip(names, codecs, strict=True)
        ]
        return kind(*values)
    except UNREADABLE as error:
        sender = f" of version {message['version']}" if isinstance(message.get("version"), str) else ""
        raise _mismatch(f"the call {kind.operation} of another process{sender}", error) from error


def is_reply(reply: Any) -> bool:
    """Return whether a process answered that hosts dask_elastic; Dask answers None for operations it does not know."""
    return isinstance(reply, dict) and bool(reply.keys() & {"answer", "error"})


def read_answer(call: Call[A], reply: Mapping[str, Any]) -> A:
    """Return the answer in a reply.

    Raises
    ------
    VersionMismatch
        If the answer is not of the call's type: another version of dask_elastic sent it.
    Exception
        The error that the handler raised.
    """
    if "error" in reply:
        raise load_error(reply["error"])
    convert = answer_codec(type(call)).decode
    try:
        answer: A = reply["answer"] if convert is None else convert(reply["answer"])
    except UNREADABLE as error:
        raise _mismatch(f"the answer to {call.operation}", error) from error
    return answer


def handlers_of(*handled: HandledCall) -> dict[str, Handler]:
    """Return handlers by operation; they turn the errors of their methods into replies and never raise into Dask.

    Raises
    ------
    ValueError
        If two methods answer one call.
    """
    found: dict[str, Handler] = {}
    for one in handled:
        if one.call.operation in found:
            raise ValueError(f"{one.call.operation} has two handlers")
        found[one.call.operation] = _handler(one)
    return found


def _handler(handled: HandledCall) -> Handler:
    call, method = handled.call, handled.method
    encode = answer_codec(call).encode

    async def reply(**message: Any) -> dict[str, Any]:
        try:
            answer = await method(read_call(call, message))
            return {"answer": answer if encode is None else encode(answer)}
        except Exception as error:  # becomes the reply
            logger.debug("%s: %r", call.operation, error)
            return {"error": dump_error(error)}

    return reply


@once_per_type
def answer_codec(kind: type[Call[Any]]) -> Codec:
    """Return the conversion of the answers to a call class."""
    return codec(answer_type(kind))


@once_per_type
def answer_type(kind: type[Call[Any]]) -> Any:
    """Return the type of the answers to a call class.

    Examples
    --------
    >>> answer_type(Version)
    <class 'str'>
    """
    for base in getattr(kind, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and issubclass(origin, Call):
            return typing.get_args(base)[0]
    raise TypeError(f"{kind.__name__} does not say what its answer is: derive it from Call[...]")


def _mismatch(what: str, error: Exception) -> VersionMismatch:
    return VersionMismatch(
        f"dask_elastic {__version__} cannot read {what}: {error}. Install one version of it everywhere."
    )
