"""The calls by which homes of executors move from or to a node."""

from __future__ import annotations

from dask_elastic.runtime.protocol import home_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.vocab.errors import MoveRefused


class HomeHandlers:
    """Answers the calls that move homes; no scheduler sends them yet, and all of them are refused."""

    def handled(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [
            home_calls.PrepareHome.handled_by(self.prepare),
            home_calls.CancelHome.handled_by(self.cancel),
            home_calls.MoveHome.handled_by(self.move),
            home_calls.InstallHome.handled_by(self.install),
        ]

    async def prepare(self, call: home_calls.PrepareHome) -> None:
        """Hold what arrives for an executor whose home this node becomes."""
        raise MoveRefused("homes do not move in this version")

    async def cancel(self, call: home_calls.CancelHome) -> None:
        """End what `prepare` has begun."""

    async def move(self, call: home_calls.MoveHome) -> home_calls.HomeMoved:
        """Move the home of an executor from here."""
        raise MoveRefused("homes do not move in this version")

    async def install(self, call: home_calls.InstallHome) -> dict[int, int]:
        """Continue an executor here."""
        raise MoveRefused("homes do not move in this version")
