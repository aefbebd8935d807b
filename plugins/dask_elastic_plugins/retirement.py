"""Dask's own retirement of workers, which first has jobs leave them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dask_elastic.runtime.transport.program_end import program_ends

if TYPE_CHECKING:
    from distributed import Scheduler

    from dask_elastic.runtime.scheduler.coordinator import Coordinator

logger = logging.getLogger("dask_elastic.scheduler")

OPERATION = "retire_workers"
CLOSES_ITSELF = "worker-close-gracefully"
"""How Dask's reason begins if a worker has itself retired because it closes, as at the end of its lifetime."""


class DaskRetirement:
    """Stands before `Scheduler.retire_workers`: executors, cores and tasks of jobs leave the workers first.

    Dask retires a worker by moving the results of its tasks, and has no hook that could make it wait for anything else:
    plugins are called once a worker is removed. All ways to retire a worker end in this one method: the client, the
    command line and the HTTP interface, `Adaptive`, `Cluster.scale`, and workers at the end of their lifetime.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler.
    coordinator : Coordinator
        Hosts the jobs.
    """

    def __init__(self, scheduler: Scheduler, coordinator: Coordinator):
        self.scheduler = scheduler
        self.coordinator = coordinator
        self._own: Any = scheduler.retire_workers

    def install(self) -> None:
        """Have calls from anywhere pass through here."""
        self.scheduler.handlers[OPERATION] = self.retire_workers
        # The scheduler's HTTP interface calls the method of the scheduler itself.
        setattr(self.scheduler, OPERATION, self.retire_workers)

    def uninstall(self) -> None:
        """Let Dask retire workers as it does without jobs."""
        self.scheduler.handlers[OPERATION] = self._own
        delattr(self.scheduler, OPERATION)

    async def retire_workers(
        self,
        workers: Iterable[str] | None = None,
        *,
        names: Iterable[Any] | None = None,
        stimulus_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Retire workers as Dask does, once jobs have left them; those that jobs cannot leave are left out.

        Parameters
        ----------
        workers, names, stimulus_id, **options
            As of `distributed.Scheduler.retire_workers`.

        Returns
        -------
        dict
            As of the same: what is known of each worker that was retired.
        """
        if not self.coordinator.running:
            return await self._own(workers=workers, names=names, stimulus_id=stimulus_id, **options)
        if workers is None and names is None:
            own: dict[str, Any] = {name: options.pop(name) for name in ("close_workers", "remove") if name in options}
            workers, options = self.scheduler.workers_to_close(**options), own
        addresses = self._addresses([*(workers or ()), *(names or ())])
        kept = await self.coordinator.retirement.vacate(addresses)
        if kept and not (stimulus_id or "").startswith(CLOSES_ITSELF):
            for address, reason in kept.items():
                # A program that ends closes all workers of its cluster, and can heed no advice.
                level = logging.DEBUG if program_ends() else logging.WARNING
                logger.log(level, "Dask retires worker %s, which stays: %s", address, reason)
            addresses = [address for address in addresses if address not in kept]
        try:
            retired = await self._own(workers=addresses, stimulus_id=stimulus_id, **options) if addresses else {}
        except BaseException:
            self.coordinator.retirement.keep(addresses)
            raise
        self.coordinator.retirement.keep(address for address in addresses if address not in retired)
        return retired

    def _addresses(self, wanted: Iterable[Any]) -> list[str]:
        """Return the addresses of workers that are given by address or, as by a cluster that shrinks, by name."""
        workers = self.scheduler.workers
        by_name = {str(state.name): address for address, state in workers.items()}
        found = (one if one in workers else by_name.get(str(one)) for one in wanted)
        return [*dict.fromkeys(address for address in found if address is not None)]
