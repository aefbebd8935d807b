"""Packets: the buffers that one write carries from worker to worker, on a Dask comm or on a socket of its own."""

from __future__ import annotations

import struct
from typing import Any

from distributed.protocol import dask_deserialize, dask_serialize, to_serialize

from dask_elastic.runtime.config.worker_options import MAX_FRAME
from dask_elastic.vocab.errors import ProtocolError

SMALL_BYTES = 256 * 2**10

PREFIX = struct.Struct("<IIQ")
"""The beginning of a packet on a socket: a magic number, how many buffers, how many bytes follow."""

_SIGN = 0xDA5CE1A5
_ALIGNMENT = 8
_PADDING = bytes(_ALIGNMENT)


class Packet:
    """Several messages in one write; the first buffer holds their headers.

    Parameters
    ----------
    buffers : list of bytes-like
        Sent as they are, never pickled.
    """

    __slots__ = ("buffers",)

    def __init__(self, buffers: list[Any]):
        self.buffers = buffers

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(len(buffer) for buffer in self.buffers)

    # on a Dask comm

    def to_message(self) -> dict[str, Any]:
        """Return the message for Dask: a small packet as plain bytes, a large one as frames that are not copied.

        Notes
        -----
        Dask takes some 0.3 ms on either side to serialise an object with frames, much more than a small copy.
        """
        if self.nbytes <= SMALL_BYTES:
            return {"small": [bytes(buffer) for buffer in self.buffers]}
        return {"packet": to_serialize(self)}

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Packet:
        """Return the inverse of `to_message`."""
        small = message.get("small")
        packet: Packet = message["packet"] if small is None else cls(small)
        return packet

    # on a socket

    def to_frames(self) -> list[Any]:
        """Return the frames to send: prefix, lengths, and the buffers, each padded to a multiple of eight bytes."""
        lengths = struct.pack(f"<{len(self.buffers)}Q", *map(len, self.buffers))
        frames: list[Any] = [b"", lengths]
        for buffer in self.buffers:
            frames.append(buffer)
            if excess := len(buffer) % _ALIGNMENT:
                frames.append(_PADDING[excess:])
        frames[0] = PREFIX.pack(_SIGN, len(self.buffers), sum(map(len, frames)))
        return frames

    @staticmethod
    def body_bytes(prefix: bytes, limit: int = MAX_FRAME) -> tuple[int, int]:
        """Return how many buffers and how many bytes follow a prefix.

        Parameters
        ----------
        prefix : bytes
            The first bytes of a packet.
        limit : int
            Most bytes that may follow: the reader allocates memory for them.

        Raises
        ------
        ProtocolError
            If this is not the beginning of a packet, or the packet is too large.
        """
        sign, count, nbytes = PREFIX.unpack(prefix.ljust(PREFIX.size, b"\0"))
        if sign != _SIGN or nbytes < count * 8:
            raise ProtocolError(f"{prefix.hex()} is not the beginning of a packet: something else uses the connection")
        if nbytes > limit:
            raise ProtocolError(f"a packet of {nbytes} bytes is refused: elastic.max-frame is {limit}")
        return count, nbytes

    @classmethod
    def from_body(cls, count: int, body: memoryview) -> Packet:
        """Return the packet whose buffers are parts of `body`, not copies.

        Raises
        ------
        ProtocolError
            If the lengths do not fit the body.
        """
        lengths = struct.unpack_from(f"<{count}Q", body)
        starts = [count * 8]
        for length in lengths:
            starts.append(starts[-1] + length + -length % _ALIGNMENT)
        if len(body) != (starts[-1] if count else 0):
            raise ProtocolError(f"a packet of {len(body)} bytes claims to have buffers of {list(lengths[:8])} bytes")
        return cls([body[start : start + size] for start, size in zip(starts, lengths, strict=False)])


@dask_serialize.register(Packet)  # type: ignore[untyped-decorator]
def _serialize(packet: Packet) -> tuple[dict[str, Any], list[Any]]:
    return {}, packet.buffers


@dask_deserialize.register(Packet)  # type: ignore[untyped-decorator]
def _deserialize(header: dict[str, Any], frames: list[Any]) -> Packet:
    return Packet(frames)
