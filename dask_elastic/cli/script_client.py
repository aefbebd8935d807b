"""The Dask client that ``dask elastic run`` creates for a script."""

from __future__ import annotations

from typing import Any

from distributed import Client

from dask_elastic.runtime.protocol.job_calls import Submit


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
        """Run a coroutine on the client's event loop; `dask_elastic.runtime.client.call.call_scheduler` does."""
        reply = super().sync(func, *arguments, **options)
        for argument in arguments:
            if isinstance(argument, Submit) and "answer" in reply:
                self._submitted[argument.name] = None
        return reply
