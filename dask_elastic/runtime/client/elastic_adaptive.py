"""A Dask cluster that grows and shrinks with the jobs that run on it."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distributed.deploy.adaptive import Adaptive

from dask_elastic.control.cluster.cluster_size import ClusterSize
from dask_elastic.runtime.protocol.calls import HOSTED, A, Call, is_reply, message_of, read_answer
from dask_elastic.runtime.protocol.cluster_calls import GROWS, ClusterNeed, Keep, NeedOfCluster
from dask_elastic.runtime.protocol.job_calls import Retire
from dask_elastic.topology.duration import parse_duration
from dask_elastic.vocab.errors import ElasticError, PlanningError
from dask_elastic.vocab.numbers import is_number

logger = logging.getLogger("dask_elastic.adaptive")

NOTHING = ClusterNeed(0.0, 0, 0, 0, ())

FAILED_SECONDS = 60.0
"""Seconds for which a worker that could not be emptied is not asked to leave again."""


class ElasticAdaptive(Adaptive):  # type: ignore[misc]
    """Starts workers when jobs need them, and empties and closes them when jobs do not.

    Parameters
    ----------
    cluster : distributed.deploy.Cluster
        Any cluster of Dask.
    cooldown : float or str
        Seconds, or a duration such as ``"30s"``, for which fewer workers must have been enough before one leaves.
    drain : float or str
        Seconds, or a duration, within which executors must have left a worker; otherwise it stays.
    slots : int, optional
        Thread slots of a worker that is not there yet; those of the present ones if left out.
    **options
        As of `distributed.deploy.Adaptive`: `minimum`, `maximum`, `interval`, `wait_count`.

    Raises
    ------
    PlanningError
        If the minimum, the maximum or the slots are no numbers or negative, the minimum is larger than the maximum, or
        the cooldown is negative.
    TopologyError
        If a duration cannot be parsed.

    Notes
    -----
    Dask's own tasks count as in `distributed.deploy.Adaptive`: the larger of the two numbers of workers holds. A job
    that is submitted while there is no worker waits for the first one. Several executors of one core share a slot
    while they are busy for 0.7 of its time at most. Workers are emptied before they leave, as nodes are in
    ALBIC's Algorithm 1 and in State migration, section 5.

    Examples
    --------
    >>> import dask_elastic as de
    >>> from dask.distributed import LocalCluster
    >>> with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
    ...     adaptive = cluster.adapt(Adaptive=de.ElasticAdaptive, minimum=1, maximum=4, cooldown="1 minute")
    ...     adaptive.minimum, adaptive.maximum
    (1, 4)
    """

    def __init__(
        self,
        cluster: Any,
        *,
        cooldown: float | str = "30s",
        drain: float | str = "1 minute",
        slots: int | None = None,
        **options: Any,
    ):
        # Dask stops an object that is refused, too.
        self.state = "inactive"
        seconds = parse_duration(cooldown, "cooldown")
        self._drain = parse_duration(drain, "drain")
        self._size = ClusterSize(seconds)
        self._slots = slots
        self._need = NOTHING
        self._failed: dict[str, float] = {}
        # Workers that were asked to leave and are not closed yet, by address; some of them are being emptied.
        self._leaving: set[str] = set()
        self._emptying: frozenset[str] = frozenset()
        minimum, maximum = options.get("minimum") or 0, options.get("maximum")
        for name, value, least in (("minimum", minimum, 0), ("maximum", maximum, 1), ("slots", slots, 1)):
            if value is not None and not (is_number(value) and value >= least):
                raise PlanningError(f"{name}={value!r}: give a number, {least} or more")
        if maximum is not None and minimum > maximum:
            raise PlanningError(f"minimum={minimum} is above maximum={maximum}: give at most the maximum")
        super().__init__(cluster, **options)
        if cluster is not None:
            self.loop.add_callback(self._announce)

    async def _announce(self) -> None:
        """Let jobs that are submitted from now on wait for workers, also where no job was submitted before."""
        try:
            await self.scheduler.set_metadata(keys=[GROWS], value={"workers": self._most})
            self._need = await self._asked()
        except (OSError, ElasticError) as error:
            logger.warning("the scheduler does not know yet that its cluster grows with its jobs: %r", error)

    @property
    def _most(self) -> int | None:
        return None if math.isinf(self.maximum) else int(self.maximum)

    async def target(self) -> int:
        """Return the number of workers that jobs and Dask's own tasks need.

        Returns
        -------
        int
            The workers, before `minimum` and `maximum` are applied.
        """
        await self._keep_leftovers()
        self._need = need = await self._asked()
        if need is NOTHING:
            alone: int = await super().target()
            return alone
        slots = self._slots or need.per_worker or 1
        # Jobs do not use workers that `dask_elastic.retire` has emptied and that are not closed yet.
        retired = sum(self._own(name) in self.plan for _, name in self._retired())
        wanted = self._size.workers(time.monotonic(), need.slots, slots, len(self.plan) - retired)
        wanted = max(wanted, min(need.jobs, 1))
        return max(need.for_tasks, wanted + retired if wanted else 0)

    def _retired(self) -> list[tuple[str, str]]:
        """Return address and name of each worker that was retired, but not by this object."""
        return [(address, name) for address, name in self._need.retired if address not in self._leaving]

    async def _keep_leftovers(self) -> None:
        """Let workers stay that were asked to leave by a call that failed: jobs would never use them again."""
        left = self._leaving - self._emptying
        if left:
            await self._call(Keep(tuple(sorted(left))))
            self._leaving -= left

    async def _asked(self) -> ClusterNeed:
        """Ask the scheduler what jobs need; a scheduler without a job so far needs nothing."""
        if await self.scheduler.get_metadata(keys=[HOSTED], default=None) is None:
            return NOTHING
        answer = await self._call(NeedOfCluster(self._most, self.target_duration))
        return NOTHING if answer is None else answer

    async def _call(self, call: Call[A]) -> A | None:
        """Call the scheduler; None if it does not host dask_elastic any more."""
        reply = await getattr(self.scheduler, call.operation)(**message_of(call))
        return read_answer(call, reply) if is_reply(reply) else None

    async def workers_to_close(self, target: int) -> list[str]:
        """Return the names of the workers that should leave, those first that can be emptied with the least effort.

        Parameters
        ----------
        target : int
            The number of workers that should stay.

        Returns
        -------
        list of str
            Names; none that could not be emptied a short while ago, and none on which Dask's own tasks run.
        """
        if not self._need.per_worker:
            names: list[str] = await super().workers_to_close(target)
            return names
        now = time.monotonic()
        self._failed = {address: until for address, until in self._failed.items() if until > now}
        able = [name for address, name in self._need.workers if address not in self._failed]
        return [self._own(name) for name in able][: max(0, len(self.plan) - target)]

    def _own(self, name: str) -> Any:
        """Return a worker's name as the cluster has it; it may be a number there."""
        return next((own for own in self.plan if str(own) == name), name)

    async def scale_down(self, workers: Iterable[Any]) -> None:
        """Empty workers and close them, step by step while fewer are needed; those that jobs do not leave stay.

        Workers that jobs leave by a restart are emptied together.

        Parameters
        ----------
        workers : iterable of str
            Their names.

        Examples
        --------
        >>> from dask.distributed import LocalCluster
        >>> with LocalCluster(n_workers=2, processes=False, dashboard_address=None) as cluster:
        ...     adaptive = cluster.adapt(Adaptive=ElasticAdaptive, minimum=1, maximum=2, interval="1 hour")
        ...     cluster.sync(adaptive.scale_down, [1])
        ...     sorted(cluster.plan)
        [0]
        """
        names = {str(name): name for name in workers}
        present = {name: address for address, name in self._need.workers if name in names}
        await self._close([own for name, own in names.items() if name not in present])
        for step in self._steps(present):
            surplus = len(self.plan) - await self.safe_target()
            if surplus <= 0:
                return
            together = step[:surplus]
            addresses = [present[name] for name in together]
            try:
                if await self._emptied(addresses):
                    await self._close([names[name] for name in together])
                    self._leaving.difference_update(addresses)
            finally:
                self._emptying = frozenset()

    def _steps(self, present: Mapping[str, str]) -> list[list[str]]:
        """Return the names of the workers that are emptied together, step by step; jobs restart in the last one."""
        restarting = [name for name, address in present.items() if address in self._need.restarting]
        return [[name] for name in present if name not in restarting] + ([restarting] if restarting else [])

    async def _close(self, names: list[Any]) -> None:
        await super().scale_down(names)

    async def _emptied(self, addresses: Sequence[str]) -> bool:
        """Have jobs leave workers; returns False if they do not, or if one is needed again meanwhile: all stay then."""
        self._emptying = frozenset(addresses)
        self._leaving.update(set(addresses) - {address for address, _ in self._retired()})
        listed = ", ".join(addresses)
        leaving = asyncio.ensure_future(self._call(Retire(tuple(addresses), self._drain)))
        try:
            while not (await asyncio.wait({leaving}, timeout=self.interval))[0]:
                if await self.safe_target() > len(self.plan) - len(addresses):
                    logger.info("workers that were to leave are needed again: %s", listed)
                    await self._stay(addresses)
                    return False
            leaving.result()
        except (ElasticError, TimeoutError) as error:
            logger.warning("workers that were to leave stay: %s: %s", listed, error)
            self._failed.update(dict.fromkeys(addresses, time.monotonic() + FAILED_SECONDS))
            await self._stay(addresses)
            return False
        finally:
            leaving.cancel()
        return True

    async def _stay(self, addresses: Sequence[str]) -> None:
        """Let jobs use workers again, except those that were retired before."""
        await self._call(Keep(tuple(address for address in addresses if address in self._leaving)))
        self._leaving.difference_update(addresses)
