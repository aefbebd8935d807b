"""The newest traffic that was sampled of each operator whose key groups move."""

from __future__ import annotations

from dask_elastic.vocab.group_flow import GroupFlow
from dask_elastic.vocab.snapshot import JobSnapshot

KEPT_SECONDS = 10.0
"""What was sampled counts so long after the last snapshot that has it."""

Flows = dict[str, tuple[GroupFlow, ...]]
"""Sampled traffic by the operator that sends it."""


class RecentFlows:
    """Keeps what was sampled while it is measured anew, as after each move of key groups.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_elastic.vocab.identity import ExecutorId
    >>> from dask_elastic.vocab.snapshot import ExecutorSnapshot
    >>> def job(*flows):
    ...     return JobSnapshot("j", 1, (ExecutorSnapshot(ExecutorId("a", 0), 0, {0: 1}, 0.0, None, flows=flows),))
    >>> recent = RecentFlows()
    >>> recent.add(0.0, job(GroupFlow("b", np.array([0]), np.array([1]), np.array([9.0]))))
    >>> recent.add(2.0, job())
    >>> [*recent.of(2.0)], [*recent.of(20.0)]
    (['a'], [])
    """

    def __init__(self) -> None:
        self._newest: dict[str, tuple[float, tuple[GroupFlow, ...]]] = {}

    def add(self, now: float, job: JobSnapshot) -> None:
        """Take a snapshot of the job, not older than those before.

        Parameters
        ----------
        now : float
            The time of the snapshot, in seconds.
        job : JobSnapshot
            The job.
        """
        found: dict[str, list[GroupFlow]] = {}
        for one in job.executors:
            if one.flows:
                found.setdefault(one.executor.component, []).extend(one.flows)
        self._newest |= {name: (now, tuple(flows)) for name, flows in found.items()}

    def of(self, now: float) -> Flows:
        """Return what was sampled within the last seconds, by the operator that sends it."""
        return {name: flows for name, (at, flows) in self._newest.items() if now - at <= KEPT_SECONDS}
