"""What a job is, as sent from the client over the scheduler to the workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dask_elastic.vocab.identity import ExecutorId


@dataclass(frozen=True)
class JobOptions:
    """How a job runs; durations in seconds, sizes in bytes.

    Parameters
    ----------
    on_error : str
        "fail" or "skip": what becomes of rows that user code cannot digest.
    inbox_time : float
        Seconds of work a task may have taken.
    balance_interval : float
        Seconds between two balancings of an executor.
    balance_threshold : float
        Ratio of the largest to the mean task load above which shards move.
    flush_interval : float
        Seconds between two flushes of a remote task's state.
    channel_window : int
        Bytes that an upstream instance may have unprocessed at one executor.
    queue_time : float
        Seconds of an executor's work that an upstream instance may have unprocessed there.
    report_interval : float
        Seconds between two reports of a worker.
    """

    on_error: str
    inbox_time: float
    balance_interval: float
    balance_threshold: float
    flush_interval: float
    channel_window: int
    queue_time: float
    report_interval: float


@dataclass(frozen=True)
class ComponentSummary:
    """The structure of a component, without any user code: what the scheduler needs to place it."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    operators: tuple[str, ...]
    instances: int | None
    shards: int
    pushed: bool = False


@dataclass(frozen=True)
class JobSpec:
    """One job's part for one node.

    Parameters
    ----------
    job : str
        Its name.
    generation : int
        Tells this run of the job from earlier ones of its name, whose messages may still be on their way.
    nodes : tuple of str
        Address of each node; nodes are known by their place here.
    node : int
        The node that this is for.
    summaries : tuple of ComponentSummary
        The structure.
    homes : dict of str to tuple of int
        Node of each instance of each source and each stateful component.
    cores : dict of str to tuple of dict
        Cores of each executor at the start, by node.
    options : JobOptions
        How it runs.
    """

    job: str
    generation: int
    nodes: tuple[str, ...]
    node: int
    summaries: tuple[ComponentSummary, ...]
    homes: dict[str, tuple[int, ...]]
    cores: dict[str, tuple[dict[int, int], ...]]
    options: JobOptions

    @property
    def run(self) -> tuple[str, int]:
        """Which run of which job; every message between its nodes carries it."""
        return self.job, self.generation

    def to_message(self) -> dict[str, Any]:
        """As plain values that msgpack carries."""
        message = asdict(self)
        message["cores"] = {name: [list(c.items()) for c in cores] for name, cores in self.cores.items()}
        return message

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> JobSpec:
        """Return the inverse of `to_message`."""
        return cls(
            job=message["job"],
            generation=message["generation"],
            nodes=tuple(message["nodes"]),
            node=message["node"],
            summaries=summaries_from(message["summaries"]),
            homes={name: tuple(homes) for name, homes in message["homes"].items()},
            cores={name: tuple(dict(c) for c in cores) for name, cores in message["cores"].items()},
            options=JobOptions(**message["options"]),
        )

    def summary(self, component: str) -> ComponentSummary:
        """Return the summary of a component."""
        return next(s for s in self.summaries if s.name == component)

    def instances(self, component: str) -> list[ExecutorId]:
        """All instances of a source or a stateful component."""
        return [ExecutorId(component, index) for index in range(len(self.homes[component]))]

    def node_of(self, instance: ExecutorId) -> int:
        """Home of an instance; a sink's instances are numbered by node."""
        homes = self.homes.get(instance.component)
        return instance.index if homes is None else homes[instance.index]

    def inputs_of(self, component: str) -> list[ExecutorId]:
        """Return the instances whose rows come into a stateful component."""
        return [i for name in self.summary(component).inputs for i in self.instances(name)]

    def sink_inputs(self, component: str, node: int) -> list[ExecutorId]:
        """Return the instances whose rows come into the instance of a sink on a node."""
        return [i for i in self.inputs_of(component) if self.node_of(i) == node]


def summaries_from(messages: list[dict[str, Any]]) -> tuple[ComponentSummary, ...]:
    """Summaries as they were before they became plain values."""
    return tuple(
        ComponentSummary(**{**m, "inputs": tuple(m["inputs"]), "operators": tuple(m["operators"])}) for m in messages
    )
