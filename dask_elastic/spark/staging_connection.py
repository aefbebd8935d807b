"""Connections of a Python worker of Spark: to the Dask workers that stage its rows, and to the scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from distributed.comm import connect
from distributed.comm.core import CommClosedError
from distributed.core import send_recv
from distributed.protocol import to_serialize

from dask_elastic.runtime.protocol.calls import A, Call, is_reply, message_of, read_answer
from dask_elastic.runtime.protocol.codec import encode
from dask_elastic.runtime.protocol.handoff_calls import BeginAttempt, HandoffPlaces
from dask_elastic.spark.background_loop import background_loop
from dask_elastic.spark.target import Target
from dask_elastic.vocab.epoch import SpoolFile
from dask_elastic.vocab.errors import ElasticError, HandoffError, JobEnded

if TYPE_CHECKING:
    from distributed.comm import Comm

logger = logging.getLogger("dask_elastic.spark")

WINDOW = 4 * 2**20
"""Largest number of bytes in flight that the worker has not yet acknowledged as stored."""

CHECK_SECONDS = 5.0
"""A worker that has not answered for so long may hang: its connection stays open, while the job runs on elsewhere."""

T = TypeVar("T")

Endpoint = tuple[str, tuple[tuple[str, str], ...]]

# Idle connections by endpoint, for reuse by the next micro-batch. By process: a fork must not use its parent's.
_IDLE: dict[int, dict[Endpoint, list[Comm]]] = {}


def call_scheduler(target: Target, call: Call[A]) -> A:
    """Call the scheduler, and wait for the answer.

    Raises
    ------
    HandoffError
        If the scheduler cannot be reached, or does not host dask_elastic.
    ElasticError
        The error with which the scheduler answers.
    """
    answer: A = background_loop().run(_call_scheduler(target, call))
    return answer


async def _call_scheduler(target: Target, call: Call[A]) -> A:
    message = {"op": call.operation, **message_of(call)}
    reply = await _call_on_idle(target, message) or await _call_on(
        await _connected(target, target.address), target, message
    )
    if not is_reply(reply):
        raise HandoffError(f"the cluster at {target.address} does not host dask_elastic: submit a job to it first.")
    return read_answer(call, reply)


async def _call_on_idle(target: Target, message: dict[str, Any]) -> Any:
    """Call over an idle connection; return None if none works. All operations are idempotent, so retrying is safe."""
    idle = _idle(target, target.address)
    while idle:
        try:
            return await _call_on(idle.pop(), target, message)
        except (CommClosedError, OSError):
            continue  # the connection broke while it was idle
    return None


async def _call_on(comm: Comm, target: Target, message: dict[str, Any]) -> Any:
    try:
        reply = await send_recv(comm, **message)
    except BaseException:
        comm.abort()
        raise
    _idle(target, target.address).append(comm)
    return reply


def end_source(target: Target) -> None:
    """End a source: no more epochs follow. Has no effect on a job that has ended, or on a later run.

    Parameters
    ----------
    target : Target
        The job, and the source if the job has several.
    """
    # Python workers that only stage rows do without it.
    from dask_elastic.runtime.protocol.job_calls import CloseSource

    try:
        places = call_scheduler(target, HandoffPlaces(target.job, target.source))
        if target.run in (None, places.run):
            call_scheduler(target, CloseSource(target.job, places.source, 0))
    except JobEnded as error:
        logger.debug("%s", error)


class AttemptSender:
    """Sends one attempt over one connection, with at most a window of unacknowledged bytes.

    Parameters
    ----------
    target : Target
        The job.
    address : str
        Address of the worker.
    connect_seconds : float or None
        For how long a worker that refuses connections is tried; None for Dask's timeout.
    """

    def __init__(self, target: Target, address: str, connect_seconds: float | None = None):
        self.target = target
        self.address = address
        self.connect_seconds = connect_seconds
        self._sending: Any = None
        self._attempt: BeginAttempt | None = None
        self._comm: Comm | None = None
        self._unacknowledged = 0

    @contextmanager
    def _named_loss(self) -> Iterator[None]:
        """Name worker and job where the connection breaks."""
        try:
            yield
        except OSError as error:
            raise HandoffError(
                f"job {self.target.job!r}: worker {self.address} closed the connection while it staged rows ({error}). "
                "It was probably killed or has left the cluster; job.wait() shows whether the job has failed."
            ) from error

    def begin(self, begin: BeginAttempt) -> None:
        """Begin the attempt; raises the worker's error if it refuses it."""
        self._attempt = begin
        background_loop().run(self._begin(begin))

    def put(self, chunk: pa.Buffer) -> None:
        """Begin to send a chunk when the one before has been sent."""
        self._wait()
        self._sending = background_loop().begin(self._send(chunk))

    def end(self) -> SpoolFile | None:
        """End the attempt; return the file that the worker has written, if it spools."""
        self._wait()
        return background_loop().run(self._end())

    def _wait(self) -> None:
        if self._sending is not None:
            self._sending.result()
            self._sending = None

    async def _begin(self, begin: BeginAttempt) -> None:
        with self._named_loss():
            _answer(await self._first_reply({"begin": encode(BeginAttempt, begin)}), "taken")

    async def _first_reply(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send the first message over an idle or new connection, and return the answer."""
        idle = _idle(self.target, self.address)
        while idle:
            self._comm = idle.pop()
            try:
                await self._watched(self._comm.write(message))
                return dict(await self._watched(self._comm.read()))
            except (CommClosedError, OSError):
                self._comm.abort()  # the connection broke while it was idle
        self._comm = await _connected(self.target, self.address, self.connect_seconds)
        await self._comm.write({"op": "elastic_stage", "reply": False})
        await self._comm.write(message)
        return dict(await self._watched(self._comm.read()))

    async def _watched(self, work: Awaitable[T]) -> T:
        """Wait for a worker, and ask the scheduler from time to time whether the source is still there.

        Raises
        ------
        HandoffError
            If it is not.
        """
        future = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({future}, timeout=CHECK_SECONDS))[0]:
                await self._check_place()
            return future.result()
        finally:
            future.cancel()

    async def _check_place(self) -> None:
        assert self._attempt is not None, "it has begun"
        places = await _call_scheduler(self.target, HandoffPlaces(self.target.job, self._attempt.source))
        if places.generation != self._attempt.generation or self.address not in places.places:
            raise HandoffError(
                f"job {self.target.job!r}: worker {self.address} does not answer, and the job runs elsewhere by now."
            )

    async def _send(self, chunk: pa.Buffer) -> None:
        assert self._comm is not None
        self._unacknowledged += chunk.size
        with self._named_loss():
            await self._watched(self._comm.write({"chunk": to_serialize(memoryview(chunk))}))
            while self._unacknowledged > WINDOW:
                await self._read_acknowledgement()

    async def _end(self) -> SpoolFile | None:
        assert self._comm is not None
        with self._named_loss():
            while self._unacknowledged:
                await self._read_acknowledgement()
            await self._watched(self._comm.write({"end": True}))
            written = _answer(await self._watched(self._comm.read()), "staged")
        _idle(self.target, self.address).append(self._comm)
        self._comm = None
        return SpoolFile(*written) if written else None

    async def _read_acknowledgement(self) -> None:
        assert self._comm is not None
        self._unacknowledged -= _answer(await self._watched(self._comm.read()), "taken")

    def abort(self) -> None:
        """Close the connection, which makes the worker drop the attempt."""
        if self._comm is not None:
            background_loop().loop.call_soon_threadsafe(self._comm.abort)


async def _connected(target: Target, address: str, seconds: float | None = None) -> Comm:
    try:
        return await connect(address, timeout=seconds, **target.connection_args())
    except (TimeoutError, OSError) as error:
        raise HandoffError(f"job {target.job!r}: Dask at {address} cannot be reached from Spark: {error}") from error


def _idle(target: Target, address: str) -> list[Comm]:
    process = os.getpid()
    if process not in _IDLE:
        _IDLE.clear()
        _IDLE[process] = {}
    return _IDLE[process].setdefault((address, target.tls), [])


def _answer(reply: dict[str, Any], wanted: str) -> Any:
    if "error" in reply:
        error = pickle.loads(reply["error"])
        raise error if isinstance(error, BaseException) else ElasticError(str(error))
    return reply[wanted]
