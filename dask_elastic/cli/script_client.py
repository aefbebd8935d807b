"""The Dask client that ``dask elastic run`` creates for a script."""

from __future__ import annotations

from typing import Any

from distributed import Client


class ScriptClient(Client):  # type: ignore[misc]  # distributed is untyped
    """A client that records the names of the jobs submitted through it.

    Parameters
    ----------
    *arguments, **options
        As `distributed.Client`.
    """

    def __init__(self, *arguments: Any, **options: Any):
        self._submitted: dict[str, None] = {}
        super().__init__(*arguments, **options)

    @property
    def submitted(self) -> list[str]:
        """Names of the jobs, oldest first."""
        return [*self._submitted]

    def sync(self, func: Any, *arguments: Any, **options: Any) -> Any:
        """Run a coroutine on the client's event loop; every call of `dask_elastic.runtime.client.job.call` does."""
        reply = super().sync(func, *arguments, **options)
        if arguments[:2] == (self, "submit") and "answer" in reply:
            self._submitted[reply["answer"]["name"]] = None
        return reply
