"""What one executor gives and gets in a move of groups, and how far it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dask_elastic.executor.control_records.inputs import Inputs
from dask_elastic.executor.control_records.state_records import StateRecords
from dask_elastic.executor.groups.handed_groups import HandedGroups
from dask_elastic.executor.task_queue import Work
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.watermark import Watermark


class Exchange:
    """The part of one executor in a move of key groups; the caller holds the executor's lock.

    Groups that leave have their own event time: the minimum over the inputs, of which those that have switched to the
    next table stand still. Groups to come get each event time of the executor, as records that wait with their rows.

    Parameters
    ----------
    version : int
        The version of the first tier that the move leads to.
    gains : mapping of int to StateRecords
        The groups that it is to get, each with what makes its state records.
    loses : mapping of int to int
        The next executor of each group that it gives.
    drains : bool
        Whether it processes everything before it gives any group, and not only the rows of these groups.
    inputs : Inputs
        The executor's; they are copied.
    records : StateRecords
        Makes the state records of the groups that leave.
    event_time : int or None
        The event time of the executor's last state record, microseconds since the Unix epoch.

    Attributes
    ----------
    missing : dict of int to StateRecords
        The groups that it has not got.
    marked : set of ExecutorId
        The inputs whose end marks have come.
    rows : int
        The rows that it must still settle before it gives its groups, once all end marks have come.
    given : bool
        Whether its groups have left, and before that everything was processed if this `drains`.
    switched : bool
        Whether the upstream instances were asked to send end marks.
    is_drained : bool
        Whether nothing is left of what it settles before it gives its groups.
    left_at : int or None
        The event time of the last state record of the groups that leave.
    begun_at : int or None
        The event time of the executor's last state record when the exchange began: earlier ones did not wait for the
        groups to come.
    arrived : list of HandedGroups
        The groups whose state is in the store, until all end marks have come.
    taken_before : list of Work
        What tasks had taken before it began and have not done: rows of the groups would wait for it.
    """

    __slots__ = (
        "arrived", "begun_at", "drains", "given", "inputs", "is_drained", "left_at", "loses", "marked", "missing",
        "records", "rows", "switched", "taken_before", "version",
    )  # fmt: skip

    def __init__(
        self,
        version: int,
        gains: Mapping[int, StateRecords],
        loses: Mapping[int, int],
        drains: bool,
        inputs: Inputs,
        records: StateRecords,
        event_time: int | None,
    ) -> None:
        self.version = version
        self.missing = dict(gains)
        self.loses = dict(loses)
        self.drains = drains
        self.inputs = Inputs(inputs.receiver, ())
        self.inputs.resume(inputs)
        self.records = records
        self.marked: set[ExecutorId] = set()
        self.rows = 0
        self.given = not loses and not drains
        self.switched = False
        self.is_drained = False
        self.left_at = self.begun_at = event_time
        self.arrived: list[HandedGroups] = []
        self.taken_before: list[Work] = []

    @property
    def is_complete(self) -> bool:
        """Whether it has given and got all groups."""
        return self.given and not self.missing

    def awaits_marks_of(self, inputs: Collection[ExecutorId]) -> bool:
        """Whether an end mark is missing of an input that has not ended."""
        return not self.switched or bool(set(inputs) - self.marked)

    def advance(self, watermark: Watermark, version: int) -> None:
        """Take the watermark of an input for the groups that leave, unless rows before it went elsewhere.

        Other threads of the instance may send under the next version before the end mark has been sent.
        """
        if version < self.version:
            self.inputs.advance(watermark)

    def end(self, origin: ExecutorId, version: int) -> None:
        """Take the end of an input for the groups that leave, unless its last rows of these went elsewhere."""
        if version < self.version:
            self.inputs.end(origin)
