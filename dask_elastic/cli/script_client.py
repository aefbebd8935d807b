"""The Dask client that ``dask elastic run`` creates for a script."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Any

from distributed import Client

from dask_elastic.cli.terminal.progress_bar import progress_bar
from dask_elastic.runtime.protocol.job_calls import Submit


class ScriptClient(Client):  # type: ignore[misc]  # distributed is untyped
    """A client that records the names of the jobs submitted through it.

    Parameters
    ----------
    *arguments, **options
        As `distributed.Client`.
    """

    reports_interrupts = True
    """The command says what happens to the jobs on Ctrl-C, so `Job.wait` does not."""

    def __init__(self, *arguments: Any, **options: Any):
        self._submitted: dict[str, None] = {}
        logging.getLogger("tornado.application").addFilter(is_no_interrupted_sync)
        super().__init__(*arguments, **options)

    @property
    def submitted(self) -> list[str]:
        """Names of the jobs, oldest first."""
        return [*self._submitted]

    def sync(self, func: Any, *arguments: Any, **options: Any) -> Any:
        """Run a coroutine on the client's event loop; `dask_elastic.runtime.client.call.call_scheduler` does."""
        names = [argument.name for argument in arguments if isinstance(argument, Submit)]
        try:
            with progress_bar(f"Starting job {names[0]!r}") if names else nullcontext():
                reply = super().sync(func, *arguments, **options)
        except KeyboardInterrupt:
            # The job may have started although the answer has not arrived.
            self._submitted.update(dict.fromkeys(names))
            raise
        if names and "answer" in reply:
            self._submitted.update(dict.fromkeys(names))
        return reply


def is_no_interrupted_sync(record: logging.LogRecord) -> bool:
    """Return False for the traceback that Dask logs when Ctrl-C interrupts a call that has not begun."""
    return "sync.<locals>.cancel" not in record.getMessage()
