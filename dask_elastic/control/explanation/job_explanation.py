"""The explanation of a job: a value with a text, a table for notebooks and a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

from dask_elastic.control.explanation.amounts import cores, joined, latency
from dask_elastic.control.explanation.doubled_load import DoubledLoad
from dask_elastic.vocab.counted import counted
from dask_elastic.vocab.identity import ExecutorId

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 40
"""Number of executors that the text contains."""

COLUMNS = (
    "operator", "executor", "home", "cores", "at_home", "arrival_rate", "service_rate", "load", "wanted",
    "at_twice_the_load", "state_bytes", "why_so_many", "why_there", "decisions", "inputs", "groups",
)  # fmt: skip


@dataclass(frozen=True)
class ExecutorExplanation:
    """Why one executor has its cores, and why they are where they are.

    Parameters
    ----------
    executor : ExecutorId
        The executor.
    home : str
        The address of its home.
    cores : mapping of str to int
        Its cores by the address of the worker.
    arrival_rate : float
        Arriving tuples per second, λ.
    service_rate : float or None
        Tuples per busy second of one core, μ; None until the first tuple was processed.
    wanted : int or None
        The cores that the model asks for; None if the control loop does not decide about the executor.
    doubled : int or None
        The cores that it would get at twice the load; None where this is unknown.
    state_bytes : int
        Bytes of its state.
    why_so_many, why_there : tuple of str
        Sentences without a full stop: why it has its number of cores, and why they are on their nodes.
    decisions : tuple of str
        The last decisions that changed its cores, newest first.
    inputs : tuple of str
        What it gets from upstream instances, and where these are, heaviest first.
    groups : tuple of str
        Where key groups move: how many it owns, what they need, and with which other groups they communicate.
    queue : int
        Tuples that wait.

    Examples
    --------
    >>> held, why = {"tcp://a:1": 2}, ("stability: with 1 core its queue would grow",)
    >>> one = ExecutorExplanation(ExecutorId("count", 0), "tcp://a:1", held, 900.0, 600.0, 2, 4, 0, why, (), ())
    >>> one.load, one.summary
    (1.5, '2 cores; 900 rows/s arrive and a core serves 600 rows/s, a load of 1.50 cores')
    """

    executor: ExecutorId
    home: str
    cores: Mapping[str, int]
    arrival_rate: float
    service_rate: float | None
    wanted: int | None
    doubled: int | None
    state_bytes: int
    why_so_many: tuple[str, ...]
    why_there: tuple[str, ...]
    decisions: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    queue: int = 0

    @property
    def load(self) -> float | None:
        """The cores that its arrivals keep busy, λ/μ; None until the first tuple was processed."""
        return self.arrival_rate / self.service_rate if self.service_rate else None

    @property
    def summary(self) -> str:
        """Its cores, rates and load in one line."""
        held = f"{cores(sum(self.cores.values()))}"
        # Under backpressure, rows come together, and then none for longer than arrivals are counted.
        waits = self.queue > 0 and round(self.arrival_rate) == 0
        arriving = (
            f"{counted(self.queue, 'row')} {'waits' if self.queue == 1 else 'wait'}"
            if waits
            else f"{self.arrival_rate:,.0f} rows/s arrive"
        )
        if self.service_rate is None:
            return f"{held}; {arriving}, and what a core serves is not measured"
        if waits:
            return f"{held}; {arriving}, none arrived just now, and a core serves {self.service_rate:,.0f} rows/s"
        return (
            f"{held}; {self.arrival_rate:,.0f} rows/s arrive and a core serves {self.service_rate:,.0f} rows/s, a "
            f"load of {self.load:.2f} cores"
        )

    def lines(self) -> Iterable[tuple[str, str]]:
        """Yield the questions that are answered, each with an answer."""
        for question, answers in (
            ("why so many", self.why_so_many),
            ("why there", self.why_there),
            ("inputs", self.inputs),
            ("key groups", self.groups),
            ("at twice the load", () if self.doubled is None else (cores(self.doubled),)),
            ("last decisions", self.decisions),
        ):
            for answer in answers:
                yield question, answer


@dataclass(frozen=True)
class JobExplanation:
    """Why each executor of a job, or of one operator, has its cores, and why they are where they are.

    ``print`` shows it as text, a notebook as a table.

    Parameters
    ----------
    job : str
        The name of the job.
    time : float
        The time of the measurements, seconds since the epoch.
    target, measured, predicted : float or None
        Seconds of mean latency: the target, the measurement, and what the model predicts for the present cores.
    reason : str
        Why the next decision changes the job's cores, or why it does not.
    executors : tuple of ExecutorExplanation
        One for each executor, ordered by operator and number.
    doubled : DoubledLoad or None
        What would change at twice the load; None if the control loop does not decide about the job.
    operator : str or None
        The operator that the executors are of; None if they are all of the job.
    sections : mapping of str to str
        Further topics, such as the windows of an operator, with their texts.
    ended : str
        How the job ended, such as ``"finished"``; empty while it runs. Nothing is decided about an ended job; what is
        explained is its last measurements.

    Examples
    --------
    `Job.explain` returns one of a running job:

    >>> held, why = {"tcp://a:1": 2}, ("stability: with 1 core its queue would grow",)
    >>> one = ExecutorExplanation(ExecutorId("count", 0), "tcp://a:1", held, 900.0, 600.0, 2, 4, 0, why, (), ())
    >>> explained = JobExplanation("words", 0.0, 0.1, 0.04, 0.05, "", (one,))
    >>> print(explained)
    words: 2 cores; target 100 ms, measured 40 ms and predicted 50 ms
    <BLANKLINE>
    count[0]: 2 cores; 900 rows/s arrive and a core serves 600 rows/s, a load of 1.50 cores
      why so many:       stability: with 1 core its queue would grow
      at twice the load: 4 cores
    >>> explained.to_pandas()[["operator", "cores", "wanted"]].values.tolist()
    [['count', 2, 2]]
    """

    job: str
    time: float
    target: float | None
    measured: float | None
    predicted: float | None
    reason: str
    executors: tuple[ExecutorExplanation, ...]
    doubled: DoubledLoad | None = None
    operator: str | None = None
    sections: Mapping[str, str] = field(default_factory=dict)
    ended: str = ""

    def __str__(self) -> str:
        lines = [self._title(), *self._notes()]
        for one in self.executors[:SHOWN]:
            lines += ["", f"{one.executor}: {one.summary}"]
            before = None
            for question, answer in one.lines():
                lines.append(f"  {'' if question == before else question + ':':<18} {answer}")
                before = question
        if len(self.executors) > SHOWN:
            lines += ["", f"{len(self.executors) - SHOWN} more executors: to_pandas() has all of them"]
        for title, text in self.sections.items():
            lines += ["", f"{title}:", *(f"  {line}" for line in text.splitlines())]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        notes = "".join(f"<div>{escape(note)}</div>" for note in self._notes())
        head = "".join(f"<th style='text-align: left'>{name}</th>" for name in ("executor", "cores", "why"))
        rows = "".join(map(_html_row, self.executors[:SHOWN]))
        sections = "".join(
            f"<h4>{escape(title)}</h4><pre>{escape(text)}</pre>" for title, text in self.sections.items()
        )
        return (
            f"<div><strong>{escape(self._title())}</strong>{notes}"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{sections}</div>"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return the explanation as a data frame, one row per executor.

        Returns
        -------
        pandas.DataFrame
            Columns: ``operator``, ``executor``, ``home`` (address), ``cores``, ``at_home`` (how many of them),
            ``arrival_rate`` (λ, tuples/s), ``service_rate`` (μ, tuples per busy second and core), ``load`` (λ/μ, busy
            cores), ``wanted`` (cores that the model asks for), ``at_twice_the_load`` (cores), ``state_bytes``,
            ``why_so_many``, ``why_there``, ``decisions``, ``inputs`` and ``groups`` (lists of sentences).
        """
        import pandas as pd

        rows = [
            (
                one.executor.component, one.executor.index, one.home, sum(one.cores.values()),
                one.cores.get(one.home, 0), one.arrival_rate, one.service_rate, one.load, one.wanted, one.doubled,
                one.state_bytes, [*one.why_so_many], [*one.why_there], [*one.decisions], [*one.inputs],
                [*one.groups],
            )
            for one in self.executors
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=COLUMNS)

    def _title(self) -> str:
        latencies = [f"target {latency(self.target)}"] if self.target is not None else ["no latency target"]
        latencies += [f"measured {latency(self.measured)}"] if self.measured is not None else []
        latencies += [f"predicted {latency(self.predicted)}"] if self.predicted is not None else []
        held = sum(sum(one.cores.values()) for one in self.executors)
        of = "" if self.operator is None else f", operator {self.operator}"
        return f"{self.job}{of}: {cores(held)}; {joined(latencies)}"

    def _notes(self) -> list[str]:
        if self.ended:
            return [f"{self.ended}: no decision follows; its last measurements are explained"]
        found = [f"next decision: {self.reason}"] if self.reason else []
        return found + ([f"at twice the load: {self.doubled.text(self.target)}"] if self.doubled is not None else [])


def _html_row(one: ExecutorExplanation) -> str:
    why = "".join(f"<div><em>{question}</em>: {escape(answer)}</div>" for question, answer in one.lines())
    cells = escape(str(one.executor)), escape(one.summary), why
    return (
        "<tr>" + "".join(f"<td style='text-align: left; vertical-align: top'>{cell}</td>" for cell in cells) + "</tr>"
    )
