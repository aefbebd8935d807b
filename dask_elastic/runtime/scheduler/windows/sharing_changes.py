"""Changes between slices and instances of windows in running jobs: by users, and by the cost model."""

from __future__ import annotations

import asyncio
import logging
import math
import pickle
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache
from typing import Any, get_args

from dask_elastic.migration.strategy import MERGING_AT_TIMES
from dask_elastic.runtime.protocol import job_calls, part_calls
from dask_elastic.runtime.protocol.calls import HandledCall
from dask_elastic.runtime.protocol.job_description import SharingStatus
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.runtime.protocol.remote_errors import Relayed, text_of
from dask_elastic.runtime.protocol.reports import ExecutorReport
from dask_elastic.runtime.scheduler.core_changes import homes
from dask_elastic.runtime.scheduler.job_record import JobRecord
from dask_elastic.runtime.scheduler.job_table import JobTable
from dask_elastic.runtime.scheduler.worker_calls import WorkerCalls
from dask_elastic.topology.windowing import EventWindow, Windowing
from dask_elastic.vocab.errors import ElasticError, JobEnded, PlanningError
from dask_elastic.vocab.window_costs import WindowCosts
from dask_elastic.windows.sharing_choice import Agreement, SharingLoad, choose_sharing
from dask_elastic.windows.unit_costs import PartMeasure, completed, measured_costs
from dask_elastic.windows.window_plan import Partials

logger = logging.getLogger("dask_elastic.scheduler")

AUTO = "auto"
"""The mode in which the cost model chooses."""

LEAST_PERIOD, MOST_PERIOD = 5.0, 600.0
"""Bounds of the seconds between two evaluations of the cost model: the longest window, as in Enorm, within these."""


FADING = 0.9
"""What adding rows to instances has cost counts so much less in each period after instances have run."""


class SharingChanges:
    """Has executors add rows of windows to slices or to instances.

    Parameters
    ----------
    jobs : JobTable
        The jobs.
    calls : WorkerCalls
        Calls the homes.
    log_event : callable
        Publishes changes as events of Dask.
    clock : callable
        Returns the seconds by which periods are measured.
    """

    def __init__(
        self,
        jobs: JobTable,
        calls: WorkerCalls,
        log_event: Callable[[dict[str, Any]], Any],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.jobs = jobs
        self.calls = calls
        self.log_event = log_event
        self.clock = clock
        self._watches: dict[tuple[str, int, str], _Watch] = {}

    def handlers(self) -> list[HandledCall]:
        """Return the calls that are answered here."""
        return [job_calls.ShareWindows.handled_by(self.share)]

    async def share(self, call: job_calls.ShareWindows) -> SharingStatus:
        """Set how a compute keeps its partials.

        Raises
        ------
        UnknownOperator
            If the job has no such compute.
        JobEnded
            If the job has ended.
        PlanningError
            If its windows cannot change, the mode is unknown, or the job is restarting.
        """
        record = self.jobs.record(call.job)
        _check_runs(record)
        windowing = changing_windowing(record, call.operator)
        if call.mode not in (AUTO, *get_args(Partials)):
            raise PlanningError(f"partials={call.mode!r}: give 'slices', 'instances' or 'auto'.")
        async with record.changing[call.operator, -1]:
            before = _status(record, call.operator)
            status = before._replace(mode=call.mode, close_limit=call.close_limit)
            if call.mode not in (AUTO, before.partials):
                status = await self._change(record, windowing, status, call.mode, "a user has set it")
            record.sharing[call.operator] = status
        return status

    async def look(self) -> None:
        """Evaluate the cost model for each compute whose period has passed."""
        running = self.jobs.running
        current = {(record.name, record.spec.generation) for record in running}
        for key in [key for key in self._watches if key[:2] not in current]:
            del self._watches[key]
        for record in running:
            options = record.spec.options
            # A static job keeps its cores and shards, but windows follow the load.
            if options.paradigm == RESOURCE or options.dry_run or record.draining:
                continue
            for summary in record.spec.summaries:
                windowing = _windowing(summary.windowing)
                kept = options.strategy(summary.name) in MERGING_AT_TIMES
                if windowing is not None and windowing.changes_sharing and not kept:
                    try:
                        await self._repeat(record, summary.name, windowing)
                        await self._look_at(record, summary.name, windowing)
                    except Exception:  # whatever it is, other computes and jobs are looked at
                        logger.exception("job %r: the plan of windows of %s", record.name, summary.name)

    async def _repeat(self, record: JobRecord, operator: str, windowing: Windowing) -> None:
        """Repeat the last change for executors that lack it: their homes had not answered, or had been moving."""
        watch = self._watches.setdefault((record.name, record.spec.generation, operator), _Watch(windowing))
        status = _status(record, operator)
        lacking = watch.lacking(_reports(record, operator), status.partials == "instances")
        if not lacking:
            return
        async with record.changing[operator, -1]:
            if _status(record, operator) != status:
                return
            logger.info("job %r: %s of %s again to %s", record.name, lacking, operator, status.partials)
            try:
                await self._change(record, windowing, status, status.partials, status.reason, lacking)
            except (ElasticError, Relayed) as error:
                cause = text_of(error)
                logger.warning("job %r: %s lacks %s in part: %s", record.name, operator, status.partials, cause)

    async def _look_at(self, record: JobRecord, operator: str, windowing: Windowing) -> None:
        watch = self._watches.setdefault((record.name, record.spec.generation, operator), _Watch(windowing))
        status = _status(record, operator)
        if status.mode != AUTO:
            return
        load = watch.load(_reports(record, operator), self.clock(), status.partials)
        if load is None:
            return
        limit = math.inf if status.close_limit is None else status.close_limit
        choice = choose_sharing(windowing, load, _partials(status.partials), limit)
        if not watch.agreement.passes(choice.partials, _partials(status.partials)):
            return
        async with record.changing[operator, -1]:
            if _status(record, operator) != status:
                return
            try:
                record.sharing[operator] = await self._change(record, windowing, status, choice.partials, choice.reason)
            except (ElasticError, Relayed) as error:
                cause = text_of(error)
                logger.warning("job %r: %s keeps its %s: %s", record.name, operator, status.partials, cause)

    async def _change(
        self,
        record: JobRecord,
        windowing: Windowing,
        status: SharingStatus,
        partials: str,
        reason: str,
        executors: Collection[int] | None = None,
    ) -> SharingStatus:
        """Have all executors change at the same event time, which none is known to have reached; returns the status.

        If one does not answer, the others may have changed. Results do not depend on it; the executors whose reports
        say so then get the plan that holds once more. With `executors`, only these change.

        Raises
        ------
        PlanningError
            If the job was restarted meanwhile: its next generation begins with the former choice.
        """
        _check_runs(record)
        generation, operator = record.generation_id, status.operator
        since = self._next_time(record, operator, windowing)
        calls = [
            self.calls.one(
                address, part_calls.ChangeSharing(*generation, operator, index, partials == "instances", since)
            )
            for index, address in homes(record, operator, None)
            if executors is None or index in executors
        ]
        # All are awaited, so that no call arrives after those of a later change.
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        reached = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not record.runs(generation.generation):
            raise PlanningError(f"job {record.name!r} was restarted while {operator!r} changed to {partials}")
        late = sum(since is not None and time is not None and time >= since for time in reached)
        self.log_event(
            {"event": "sharing", "job": record.name, "operator": operator, "partials": partials, "reason": reason}
            | {"since": since, "late": late}
        )
        return status._replace(partials=partials, changed=time.time(), since=since, late=late, reason=reason)

    def _next_time(self, record: JobRecord, operator: str, windowing: Windowing) -> int | None:
        """Return the end of a slice that no executor has reached, if event time goes on as fast as it did."""
        times = [part.event_time for part in _reports(record, operator)]
        found = [time for time in times if time is not None]
        if not found:
            return None
        watch = self._watches.get((record.name, record.spec.generation, operator))
        ahead = max(found) + (0 if watch is None else watch.within_a_report)
        offset = windowing.windows[0].start if isinstance(windowing.windows[0], EventWindow) else 0
        return ahead - (ahead - offset) % windowing.slice + windowing.slice


class _Watch:
    """What is known of a compute from its reports.

    Attributes
    ----------
    agreement : Agreement
        How often the cost model has preferred the other plan.
    within_a_report : int
        Microseconds by which event time advances between a report and a call, about.
    """

    def __init__(self, windowing: Windowing):
        longest = max(window.length for window in windowing.windows if isinstance(window, EventWindow))
        self._period = min(max(longest * 1e-6, LEAST_PERIOD), MOST_PERIOD)
        self._last: tuple[float, int, int] | None = None
        self._costs: dict[int, WindowCosts] = {}
        self.agreement = Agreement()
        self.within_a_report = 0
        self._lacking: set[int] = set()
        self._instance_row = 0.0

    def lacking(self, parts: list[ExecutorReport], separate: bool) -> set[int]:
        """Return the executors that reported another plan at this call and the last one: one may precede a change."""
        other = {part.executor for part in parts if part.separate is not separate}
        lacking = other & self._lacking
        self._lacking = other - lacking
        return lacking

    def load(self, parts: list[ExecutorReport], now: float, plan: str) -> SharingLoad | None:
        """Return what was measured since the last call, once a period; None before its end, and without progress.

        With instances, rows cost what they do, not what rehearsals say. With slices, they cost as much as that at least
        for some periods after: rehearsals read and write no state, and a plan that they prefer must not end at once.
        """
        times = [part.event_time for part in parts]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times):
            return None
        rows, partials = sum(part.rows for part in parts), sum(part.open_windows or 0 for part in parts)
        if self._last is None:
            self._last = now, rows, min(known)
            self._recent(parts, plan)
            return None
        at, before, reached = self._last
        if now - at < self._period or min(known) <= reached or rows < before:
            return None
        seconds = (min(known) - reached) * 1e-6
        self.within_a_report = round(2e6 * seconds / (now - at))
        self._last = now, rows, min(known)
        costs = measured_costs(self._recent(parts, plan))
        units = completed(costs.units, measured_costs([part.window_measure for part in parts]).units)
        if plan == "instances":
            self._instance_row = units.row
        else:
            self._instance_row *= FADING
            units = replace(units, row=max(units.row, self._instance_row))
        rates = costs.other, costs.keys, costs.lookups, costs.corrected
        return SharingLoad((rows - before) / seconds, partials, units, *rates)

    def _recent(self, parts: list[ExecutorReport], plan: str) -> list[PartMeasure]:
        """Return what was measured since the last call; since the start of executors that are new at their homes.

        Rehearsals are few, so that all of them count; none with instances.
        """
        found = []
        for part in parts:
            total, before = part.window_costs, self._costs.get(part.executor)
            recent = None if total is None or before is None else total.since(before)
            recent = total if recent is None else recent
            if total is not None and recent is not None:
                tried = (0.0, 0.0) if plan == "instances" else (total.tried, total.trying)
                recent = recent._replace(tried=tried[0], trying=tried[1])
            found.append(part.window_measure._replace(costs=recent))
            if total is not None:
                self._costs[part.executor] = total
        return found


def changing_windowing(record: JobRecord, operator: str) -> Windowing:
    """Return the windows of a compute whose plan may change while the job runs.

    Raises
    ------
    UnknownOperator
        If the job has no such compute.
    PlanningError
        If it has no windows, or they cannot change; names the reason.
    """
    homes(record, operator, None)
    if record.spec.options.paradigm == RESOURCE:
        raise PlanningError(
            f"job {record.name!r} has the paradigm {RESOURCE!r}: how it keeps partials of windows does not change, "
            "since they move between executors."
        )
    strategy = record.spec.options.strategy(operator)
    if strategy in MERGING_AT_TIMES:
        raise PlanningError(
            f"{operator!r} of job {record.name!r} has migration={strategy!r}: its partials travel between tasks as "
            'they are, so that how they are kept does not change. Submit it with migration="labelled".'
        )
    windowing = _windowing(record.spec.summary(operator).windowing)
    if windowing is None:
        raise PlanningError(f"{operator!r} of job {record.name!r} has no aggregates over windows: nothing is shared.")
    if not windowing.changes_sharing:
        why = windowing.unshared or "its instances consist of too many slices"
        why = f"share={windowing.share} holds for the life of its state" if windowing.share != AUTO else why
        raise PlanningError(
            f"{operator!r} of job {record.name!r} cannot change: {why}. Only computes with share='auto' change whose "
            "windows can share slices."
        )
    return windowing


def _check_runs(record: JobRecord) -> None:
    if not record.live:
        raise JobEnded(f"job {record.name!r} has {record.status.value}: its windows do not change any more")
    if record.halted or record.starting:
        status = "restarting" if record.halted else record.status.value
        raise PlanningError(f"job {record.name!r} is {status}: try again when it runs")


@lru_cache(maxsize=256)
def _windowing(pickled: bytes | None) -> Windowing | None:
    if pickled is None:
        return None
    found = pickle.loads(pickled)
    assert isinstance(found, Windowing)
    return found


def _reports(record: JobRecord, operator: str) -> list[ExecutorReport]:
    return [part for one in record.reports.values() for part in one.report.executors if part.operator == operator]


def _partials(name: str) -> Partials:
    return "slices" if name == "slices" else "instances"


def _status(record: JobRecord, operator: str) -> SharingStatus:
    start = SharingStatus(operator, AUTO, "slices", None, None, None, 0, "the choice at submit")
    return record.sharing.get(operator, start)
