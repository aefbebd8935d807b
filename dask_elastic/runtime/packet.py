"""Opaque buffers on a Dask comm: what one write carries from worker to worker."""

from __future__ import annotations

from typing import Any

from distributed.protocol import dask_deserialize, dask_serialize


class Packet:
    """Several messages in one write; the first buffer says what the others are.

    Parameters
    ----------
    buffers : list of bytes-like
        Sent as they are, never pickled.
    """

    __slots__ = ("buffers",)

    def __init__(self, buffers: list[Any]):
        self.buffers = buffers


@dask_serialize.register(Packet)  # type: ignore[untyped-decorator]
def _serialize(packet: Packet) -> tuple[dict[str, Any], list[Any]]:
    return {}, packet.buffers


@dask_deserialize.register(Packet)  # type: ignore[untyped-decorator]
def _deserialize(header: dict[str, Any], frames: list[Any]) -> Packet:
    return Packet(frames)
