"""What a job's handle reads: measurements, decisions, snapshots, state and collected rows."""

from __future__ import annotations

import json
import statistics
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dask_elastic.control.recording import loads
from dask_elastic.control.settings import ControlSettings
from dask_elastic.runtime.client.data_frame import data_frame
from dask_elastic.runtime.client.event_time_view import event_time_table
from dask_elastic.runtime.client.job_state import JobState
from dask_elastic.runtime.client.measures.backpressure import backpressure_sections
from dask_elastic.runtime.client.measures.decisions_frame import decisions_frame
from dask_elastic.runtime.client.measures.job_measures import JobMeasures
from dask_elastic.runtime.client.window_view import window_sections
from dask_elastic.runtime.protocol import job_calls
from dask_elastic.runtime.protocol.calls import B, Call
from dask_elastic.runtime.protocol.job_description import ExecutorAssignment
from dask_elastic.runtime.protocol.job_spec import RESOURCE
from dask_elastic.runtime.protocol.tables import read_table
from dask_elastic.topology.schema import stack_rows
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.snapshot import Snapshot

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

    from dask_elastic.control.explanation.evidence import Evidence
    from dask_elastic.control.explanation.job_explanation import JobExplanation
    from dask_elastic.control.explanation.planned_decision import PlannedDecision

GROUPS_MOVE = "; in this job its key groups move, progressively or synchronised"


class JobReader(JobMeasures):
    """The reading half of `Job`; its commands are in `Job` itself."""

    client: Client

    @abstractmethod
    def _ask(self, call: Call[B], /) -> B:
        """Call the scheduler."""

    def event_times(self) -> pd.DataFrame:
        """Return the watermarks, one row per source instance, executor and sink instance that has event time.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``instance``, ``event_time`` (the watermark, in UTC without a time zone: a source
            emits no older rows, an executor has processed and a sink has written all older rows, except late ones;
            missing while it is unknown), ``late`` (rows of a source that were older than its watermark; they are
            processed, and counted here).
        """
        return event_time_table(self._describe().event_times)

    def assignment(self) -> pd.DataFrame:
        """Return where tasks and shards are, one row per task.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``home`` and ``node`` (addresses), ``task``, ``remote``, ``shards``
            (a list of shard numbers).
        """
        parts, nodes = self._assigned()
        rows = [
            {
                "operator": part.operator,
                "executor": part.executor,
                "home": nodes[part.home],
                "task": task,
                "node": nodes[node],
                "remote": node != part.home,
                "shards": [shard for shard, owner in enumerate(part.owner) if owner == task],
            }
            for part in parts
            for task, node in sorted(part.node_of_task.items())
        ]
        columns = ["operator", "executor", "home", "task", "node", "remote", "shards"]
        return data_frame(rows, columns).sort_values(["operator", "executor", "task"], ignore_index=True)

    def _assigned(self) -> tuple[tuple[ExecutorAssignment, ...], tuple[str, ...]]:
        """Return the assignment, and the address of each node of the same generation."""
        before = self._describe()
        while True:
            parts = self._ask(job_calls.Assignment(self.name))
            # Read after the assignment: a worker may have joined in between. A restart numbers the nodes anew.
            after = self._describe()
            if after.generation == before.generation:
                return parts, after.nodes
            before = after

    def moves(self) -> pd.DataFrame:
        """Return the newest finished shard moves, at most 1,000 per executor, in the order in which they ended.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``shard``, ``source`` and ``target`` (tasks), ``across_nodes``,
            ``ended`` (seconds since the epoch), ``pause`` (seconds for which the shard's tuples waited), ``strategy``,
            and ``reason`` (with ``migration="auto"``, what each strategy was expected to cost). A smooth move has
            ended when its target has the rows of later windows.
        """
        of_moves = ["operator", "executor", "shard", "source", "target", "across_nodes", "ended", "pause"]
        columns = [*of_moves, "strategy", "reason"]
        found = [vars(move) for move in self._ask(job_calls.Moves(self.name))]
        return data_frame(found, columns).sort_values("ended", ignore_index=True)

    def recoveries(self) -> pd.DataFrame:
        """Return how executors recovered from lost remote tasks, at most 1,000 losses per executor; see `restarts`.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``node`` (number of the lost worker within the job), ``tasks`` and
            ``shards`` (how many were lost), ``rows`` (to be processed again), ``lost`` (when the loss was detected,
            seconds since the epoch), ``first`` and ``ended`` (when the first and the last of these rows had been
            processed again; missing until then).
        """
        columns = ["operator", "executor", "node", "tasks", "shards", "rows", "lost", "first", "ended"]
        found = [vars(recovery) for recovery in self._ask(job_calls.Recoveries(self.name))]
        table = data_frame(found, columns)
        return table.astype({"first": float, "ended": float}).sort_values("lost", ignore_index=True)

    def restarts(self) -> pd.DataFrame:
        """Return the newest restarts of the whole job from a checkpoint, at most 100, in the order in which they began.

        Returns
        -------
        pandas.DataFrame
            Columns: ``began`` (seconds since the epoch), ``seconds`` (until the job ran again; missing before, and if
            the attempt failed, so that another one follows), ``checkpoint`` (from which it continued; 0 for the
            beginning of the input), ``planned`` (true if nothing was lost, because workers are to leave), ``workers``
            (a list of the addresses that it lost or leaves), ``reason``. A job that was resumed lists its own restarts
            only; of a job without checkpoints, the table is empty.
        """
        columns = ["began", "seconds", "checkpoint", "planned", "workers", "reason"]
        found = [{**vars(one), "workers": [*one.workers]} for one in self._ask(job_calls.Restarts(self.name))]
        return data_frame(found, columns).astype({"seconds": float})

    def checkpoints(self) -> pd.DataFrame:
        """Return the newest checkpoints, at most 100, in the order in which they began.

        Returns
        -------
        pandas.DataFrame
            Columns: ``number``, ``began`` (seconds since the epoch), ``seconds`` (until all parts were durable, or it
            was given up), ``nbytes`` (written for it), ``held`` (the longest time for which the inputs of an executor
            had to wait, in seconds), ``error`` (why it was given up; missing if it is complete).

        Raises
        ------
        CheckpointError
            If the job takes no checkpoints.

        Examples
        --------
        >>> import tempfile
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask.distributed import Client
        >>> topology = de.Topology("letters")
        >>> letters = topology.source("letters", de.sources.Arrow(pa.table({"letter": ["a", "b"]}), rate=1))
        >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter")
        >>> with (
        ...     tempfile.TemporaryDirectory() as folder,
        ...     Client(n_workers=1, processes=False, dashboard_address=None) as client,
        ... ):
        ...     job = de.submit(topology, client, checkpoint=folder)
        ...     number = job.checkpoint()
        ...     job.checkpoints()["error"].isna().all()
        np.True_
        """
        columns = ["number", "began", "seconds", "nbytes", "held", "error"]
        found = [vars(taken) for taken in self._ask(job_calls.Checkpoints(self.name))]
        return data_frame(found, columns).sort_values("number", ignore_index=True)

    def decisions(self, moves: bool = False, last: int | None = None) -> pd.DataFrame:
        """Return the newest decisions about the job's cores and homes, at most 1,000, in the order of their making.

        A restart from a checkpoint begins the list anew, with itself if it was planned; `restarts` lists all restarts.
        A decision about thousands of executors may have hundreds of kilobytes: `last` gets fewer of them.

        Parameters
        ----------
        moves : bool, optional
            Whether to include the moves of shards between workers, a row for each, at the time of its end. They have no
            ``number``; their ``reason`` is the strategy, and why it was chosen.
        last : int, optional
            How many rows at most; all that the scheduler keeps if left out.

        Returns
        -------
        pandas.DataFrame
            Columns: ``number``, ``time`` (seconds since the epoch), ``target``, ``measured``, ``predicted`` and
            ``observed`` (mean seconds from source to end of processing: the target, the measurement at that time, the
            model's prediction, and the measurement some periods later), ``feasible`` (whether any number of cores
            reaches the target), ``applied`` (false in a dry run and if the guard held the change back), ``reason``,
            ``wanted`` (cores by executor), ``changes`` (a list: executor, cores by worker before and after, bytes of
            state moved), ``starved`` (missing cores), ``bound`` (operators whose threads hold the GIL),
            ``moved_bytes``, ``seconds`` (duration of the decision), ``homes`` (a list of executors that were moved
            on request: executor, workers before and after, bytes of state, seconds for which rows waited),
            ``others`` (a list of texts: what else has changed, key groups that moved or a restart); with `moves` also
            ``move`` (the values of one row of `moves`; missing in other rows).
        """
        decided = json.loads(bytes(self._ask(job_calls.Decisions(self.name, last))))
        return decisions_frame(decided, self.moves() if moves else None, last)

    def explain(self, operator: str | None = None) -> JobExplanation:
        """Return why each executor has its cores, why they are where they are, and what twice the load would change.

        Parameters
        ----------
        operator : str, optional
            Only the executors of this stateful operator; of one that runs in the tasks of another, that one's.

        Returns
        -------
        JobExplanation
            Prints as text; a notebook shows a table; ``to_pandas()`` returns a data frame, one row per executor. Of a
            compute of aggregates over windows, it also says how partial results are kept, and what that costs; of each
            stateful component, how it may be migrated, split and combined (Enorm, section 5). Where key groups move,
            it says what each group needs and exchanges with which groups of other operators, how much of that stays on
            its worker, and why groups moved last. It also says which operators wait for a slower one behind them.

        Raises
        ------
        UnknownOperator
            If the job has no stateful operator of that name.
        PlanningError
            If the job has not been measured yet.

        Notes
        -----
        The client runs the control loop again on its last snapshots, at most 300, so the answer is about the loop's
        present knowledge, not about its last decision. Nothing is changed.

        Examples
        --------
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask.distributed import Client
        >>> topology = de.Topology("letters")
        >>> letters = topology.source("letters", de.sources.Push(pa.schema({"letter": pa.string()})))
        >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter", executors=1)
        >>> with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as client:
        ...     job = de.submit(topology, client)
        ...     explained = job.explain("per_letter")
        >>> len(explained.executors), explained.executors[0].executor
        (1, ExecutorId(component='per_letter', index=0))
        >>> explained.to_pandas()[["operator", "executor"]].values.tolist()
        [['per_letter', 0]]
        """
        described = self._describe()
        component = next((one.name for one in described.components if operator in one.computes), operator)
        ended = "" if described.live else described.status.value
        explained, sections = self._evidence().explanation(component, ended), window_sections(described, operator)
        sections |= {
            f"component {one.name}": one.configuration + (GROUPS_MOVE if described.paradigm == RESOURCE else "")
            for one in described.components
            if one.configuration and operator in (None, *one.operators)
        }
        sections = backpressure_sections(described, operator) | sections
        if component != operator:
            shared = f"runs in the tasks of {component!r}: executors, cores, shards and load are those of both"
            sections = {f"{operator}": shared, **sections}
        return replace(explained, sections={**sections, **explained.sections})

    def plan(self, *, dry_run: bool = True) -> PlannedDecision:
        """Return what the control loop would decide now; nothing is changed.

        Parameters
        ----------
        dry_run : bool
            Must be true: the control loop carries out its decisions itself, every period.

        Returns
        -------
        PlannedDecision
            The changes with the state that they move and the pause that is expected, the latency that is predicted
            with and without them, and the reason. Of a job with ``placement=``, also the moves of homes or of key
            groups that its planner wants. Prints as text. Of an ended job, what its last measurements suggest.

        Raises
        ------
        PlanningError
            If the job has not been measured yet, or `dry_run` is false.

        See Also
        --------
        Job.explain, Job.set_cores, Job.move_shard

        Examples
        --------
        >>> import dask_elastic as de
        >>> import pyarrow as pa
        >>> from dask.distributed import Client
        >>> topology = de.Topology("letters")
        >>> letters = topology.source("letters", de.sources.Push(pa.schema({"letter": pa.string()})))
        >>> counted = letters.key_by("letter").compute({"seen": de.aggregate.Count()}, name="per_letter", executors=1)
        >>> with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as client:
        ...     decision = de.submit(topology, client, cores={"per_letter": 1}).plan()
        >>> decision.changes, decision.moved_bytes
        ((), 0.0)
        """
        if not dry_run:
            raise PlanningError(
                f"job {self.name!r}: plan(dry_run=False) is not possible: the control loop carries out its decisions "
                "itself, every period; use set_cores or move_shard to change something by hand."
            )
        waits = self._ask(job_calls.Moves(self.name))
        from dask_elastic.control.explanation.evidence import Pauses

        pauses = Pauses(
            *(_median(move.pause for move in waits if move.across_nodes is across) for across in (False, True))
        )
        described = self._describe()
        return replace(self._evidence().planned(pauses), ended="" if described.live else described.status.value)

    def _evidence(self) -> Evidence:
        # A submitted job starts without it: it imports much.
        from dask_elastic.control.explanation.evidence import Evidence
        from dask_elastic.control.placement.settings import PlacementSettings

        answer = self._ask(job_calls.Evidence(self.name))
        *before, present = loads(bytes(answer.snapshots)) or [Snapshot(0.0, (), ())]
        decisions = json.loads(bytes(answer.decisions))
        settings, placement = ControlSettings(**answer.settings), PlacementSettings(**answer.placement)
        return Evidence(self.name, before, present, settings, decisions, placement)

    def snapshots(self, last: int | None = None) -> list[Snapshot]:
        """Return the newest snapshots of the whole cluster, from which the control loop made its decisions.

        Parameters
        ----------
        last : int, optional
            How many at most. The scheduler keeps the newest 600, or 32 MiB of them, since the job's newest restart.

        Returns
        -------
        list of Snapshot
            One for each period of the control loop, oldest first.

        See Also
        --------
        dask_elastic.save_snapshots, dask_elastic.replay
        """
        return loads(bytes(self._ask(job_calls.Snapshots(self.name, last))))

    def state(self, operator: str) -> JobState:
        """Return the state of a stateful operator, readable while the job runs and after it has ended.

        Parameters
        ----------
        operator : str
            Name of the operator.

        Returns
        -------
        JobState
            Reads the state; each of its methods reads anew.
        """
        return JobState(self.client, self.name, operator)

    def collect(self, sink: str) -> pa.Table:
        """Return the rows that a `sinks.Collect` holds.

        Parameters
        ----------
        sink : str
            Name of the sink.

        Returns
        -------
        pyarrow.Table
            The rows; those of one node in the order in which they were written, nodes in no particular order.

        Raises
        ------
        SchemaMismatch
            If rows of unlike columns have reached the sink.
        """
        parts = [read_table(part) for part in self._ask(job_calls.Collect(self.name, sink))]
        return stack_rows(parts, f"the rows of sink {sink!r} of job {self.name!r}")

    def dead_letters(self, operator: str | None = None) -> Any:
        """Return the rows on which user code raised, under ``on_error="skip"``.

        Parameters
        ----------
        operator : str, optional
            Name of an operator; without it, only the counts are returned.

        Returns
        -------
        dict of str to int, or pyarrow.Table
            Without `operator`, the number of rows by operator; with it, the rows, and the error of each in the column
            ``__error``. Beyond 64 MiB on a worker, rows are counted but not kept. A restart of the job loses them, and
            counts those that it processes again twice.
        """
        if operator is None:
            return dict(self._describe().dead_letters)
        parts = [read_table(part) for part in self._ask(job_calls.DeadLetters(self.name, operator))]
        return pa.concat_tables(parts, promote_options="default") if parts else pa.table({})


def _median(seconds: Iterable[float]) -> float | None:
    values = [*seconds]
    return statistics.median(values) if values else None
