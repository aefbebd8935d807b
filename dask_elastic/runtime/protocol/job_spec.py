"""What a job is, as sent from the client over the scheduler to the workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dask_elastic.vocab.identity import ExecutorId

STATIC = "static"
ELASTIC = "executor-centric"
PARADIGMS = (ELASTIC, STATIC)
"""How a job may be elastic."""

VACANT = ""
"""Address at the place of a node that has left a job; the next one that joins takes the place."""


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
    latency_target : float or None
        Seconds within which the mean tuple is to be processed; None leaves the cores as they are.
    planner : str
        Who assigns cores to executors.
    paradigm : str
        How the job is elastic: one of `PARADIGMS`.
    dry_run : bool
        Whether decisions are only said.
    watermark_interval : float
        Seconds between two watermarks of a source, at least.
    idle_timeout : float or None
        Seconds without a row after which nobody waits for the event time of an instance of a source; None is never.
    """

    on_error: str
    inbox_time: float
    balance_interval: float
    balance_threshold: float
    flush_interval: float
    channel_window: int
    queue_time: float
    report_interval: float
    latency_target: float | None
    planner: str
    paradigm: str
    dry_run: bool
    watermark_interval: float = 0.1
    idle_timeout: float | None = None


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
    epochs: int = 0


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
        Address of each node, `VACANT` for one that has left; nodes are known by their place here.
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
    guests : tuple of int
        Nodes that joined while the job ran, or that are about to leave: their loss harms only who has tasks there.
    incarnation : int
        Counts the joinings of the job's nodes: which one this part is of. What an earlier part of a node says is stale.
    """

    job: str
    generation: int
    nodes: tuple[str, ...]
    node: int
    summaries: tuple[ComponentSummary, ...]
    homes: dict[str, tuple[int, ...]]
    cores: dict[str, tuple[dict[int, int], ...]]
    options: JobOptions
    guests: tuple[int, ...] = ()
    incarnation: int = 0

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
            guests=tuple(message["guests"]),
            incarnation=message["incarnation"],
        )

    @property
    def members(self) -> list[tuple[int, str]]:
        """Return place and address of every node that has not left."""
        return [(node, address) for node, address in enumerate(self.nodes) if address != VACANT]

    @property
    def settled(self) -> frozenset[int]:
        """Nodes that are home of an executor or run a source; sinks are at the same ones."""
        return frozenset(node for homes in self.homes.values() for node in homes)

    def with_guest(self, address: str) -> JobSpec:
        """Return the spec with one more node, at the first place that is free."""
        nodes = list(self.nodes)
        place = nodes.index(VACANT) if VACANT in nodes else len(nodes)
        nodes[place : place + 1] = [address]
        return replace(self, nodes=tuple(nodes), guests=(*self.guests, place))

    def without(self, address: str) -> JobSpec:
        """Return the spec without a node; the others keep their places."""
        place = self.nodes.index(address)
        nodes = (*self.nodes[:place], VACANT, *self.nodes[place + 1 :])
        return replace(self, nodes=nodes, guests=tuple(guest for guest in self.guests if guest != place))

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
