"""Adaptation operations of Enorm's model: operators move between components, and partitions between nodes.

Notes
-----
Enorm, sections 4.5, 5 and 5.1. Two basic operations, `Migrate` and `RePartition`, change a job; the others are
sequences of them. Rule (c) of the paper's `Migrate` has the index i where the component is meant that the operator
leaves, j.
The job's own components are drawn with what this model says of them; see `topology.windows.configuration`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, TypeAlias

from dask_elastic.vocab.errors import PlanningError

OperatorKind: TypeAlias = Literal["map", "compute", "consolidate"]
Category: TypeAlias = Literal["instant", "disruptive", "smooth"]
Attributes: TypeAlias = frozenset[str]


@dataclass(frozen=True)
class ModelOperator:
    """An operator as the model sees it.

    Parameters
    ----------
    name : str
        Its name.
    kind : {"map", "compute", "consolidate"}
        What it does; only a compute has state of its own.
    attributes : frozenset of str
        PA(O), the attributes by which its input may be partitioned; those of the whole input schema for any.
    windowed : bool
        Whether it computes over windows.
    """

    name: str
    kind: OperatorKind
    attributes: Attributes
    windowed: bool = False


@dataclass(frozen=True)
class ModelComponent:
    """A component: operators that run together, and the node of each of its partitions.

    Parameters
    ----------
    operators : tuple of ModelOperator
        In the order in which rows reach them.
    placed : tuple of int
        The node of each partition.
    """

    operators: tuple[ModelOperator, ...]
    placed: tuple[int, ...] = ()

    @property
    def attributes(self) -> Attributes:
        """PA(C), the attributes by which all of its operators may be partitioned."""
        return reduce(frozenset.intersection, (one.attributes for one in self.operators))

    @property
    def nodes(self) -> frozenset[int]:
        """The nodes of its partitions."""
        return frozenset(self.placed)

    @property
    def stateful(self) -> bool:
        """Whether it has state that is nowhere else: what a consolidate operator lacks is sent again."""
        return any(one.kind == "compute" for one in self.operators)

    @property
    def flexible(self) -> bool:
        """Whether its input may be divided otherwise without moving state: it consolidates nothing itself."""
        return all(one.kind != "consolidate" for one in self.operators)


Job: TypeAlias = Mapping[str, ModelComponent]
"""The components of a job by name, in the order in which rows reach them."""


@dataclass(frozen=True)
class Migrate:
    """Move an operator from a component to another one: Migrate(O_i, C_j, C_k).

    Examples
    --------
    >>> one, two = ModelOperator("sum", "compute", frozenset("ab")), ModelOperator("all", "consolidate", frozenset("a"))
    >>> job = {"C1": ModelComponent((one, two)), "C2": ModelComponent((ModelOperator("top", "map", frozenset("a")),))}
    >>> found = Migrate("all", "C1", "C2").apply(job)
    >>> sorted(found["C1"].attributes), [one.name for one in found["C2"].operators]
    (['a', 'b'], ['all', 'top'])
    """

    operator: str
    source: str
    target: str

    def apply(self, job: Job) -> Job:
        """Return the job after it.

        Raises
        ------
        PlanningError
            If there is no such operator, it is the only one, or the target could not be partitioned any more.
        """
        source, target = _component(job, self.source), _component(job, self.target)
        moved = [one for one in source.operators if one.name == self.operator]
        if not moved:
            raise PlanningError(f"{self.source!r} has no operator {self.operator!r}")
        if len(source.operators) == 1:
            raise PlanningError(f"{self.operator!r} is all of {self.source!r}: fuse the components instead")
        if not target.attributes & moved[0].attributes:
            raise PlanningError(
                f"{self.operator!r} is partitioned by {sorted(moved[0].attributes)}, {self.target!r} by "
                f"{sorted(target.attributes)}: together they could not be partitioned"
            )
        # Rows reach it first if its component came before.
        order = list(job)
        first = order.index(self.source) < order.index(self.target)
        joined = (*moved, *target.operators) if first else (*target.operators, *moved)
        left = tuple(one for one in source.operators if one.name != self.operator)
        return {**job, self.source: replace(source, operators=left), self.target: replace(target, operators=joined)}


@dataclass(frozen=True)
class RePartition:
    """Place the partitions of a component on other nodes: RePartition(C_i, N_j, N_k).

    With the same nodes it balances, with more or fewer it changes what the component has. As few partitions move as
    the even numbers of partitions on the nodes allow.

    Examples
    --------
    >>> job = {"C1": ModelComponent((ModelOperator("sum", "compute", frozenset("a")),), (1, 1, 2, 2))}
    >>> RePartition("C1", frozenset({1, 2}), frozenset({1, 2, 3, 4})).apply(job)["C1"].placed
    (1, 3, 2, 4)
    """

    component: str
    before: frozenset[int]
    after: frozenset[int]

    def apply(self, job: Job) -> Job:
        """Return the job after it.

        Raises
        ------
        PlanningError
            If the component is on other nodes than `before`, or no node is left.
        """
        component = _component(job, self.component)
        if component.nodes != self.before:
            raise PlanningError(f"{self.component!r} is on the nodes {sorted(component.nodes)}, not {[*self.before]}")
        if not self.after:
            raise PlanningError(f"{self.component!r} needs at least one node")
        placed = list(component.placed)
        counts = Counter(node for node in placed if node in self.after)
        share, more = divmod(len(placed), len(self.after))
        fullest = sorted(self.after, key=lambda node: (-counts[node], node))
        room = {node: share + (place < more) for place, node in enumerate(fullest)}
        homeless = []
        for partition, node in enumerate(placed):
            if room.get(node, 0):
                room[node] -= 1
            else:
                homeless.append(partition)
        free = iter([node for node in sorted(room) for _ in range(room[node])])
        for partition in homeless:
            placed[partition] = next(free)
        return {**job, self.component: replace(component, placed=tuple(placed))}


Operation: TypeAlias = Migrate | RePartition


def adapted(job: Job, operations: Iterable[Operation]) -> Job:
    """Return a job after basic operations, one after the other; see `Migrate` and `RePartition`."""
    return reduce(lambda before, operation: operation.apply(before), operations, job)


def allocated(job: Job, node: int, component: str, operator: str, other: str) -> tuple[Operation, ...]:
    """Return the composite operation that gives a component a node more, and another component one of its operators.

    Without the operator, whose attributes it lacks, the component can be divided further (section 4.5).
    """
    nodes = _component(job, component).nodes
    return Migrate(operator, component, other), RePartition(component, nodes, nodes | {node})


def split(job: Job, component: str, following: str) -> tuple[Operation, ...]:
    """Return the composite operation that makes a rigid stateful component flexible (section 5.1).

    Its consolidate operators move to the component behind it.
    """
    chosen = [one.name for one in _component(job, component).operators if one.kind == "consolidate"]
    # The last one first: each is put before those of the following component.
    return tuple(Migrate(name, component, following) for name in reversed(chosen))


def combined(job: Job, component: str, following: str) -> tuple[Operation, ...]:
    """Return the inverse of `split` (section 5.1): consolidate operators return to the component before."""
    chosen = [one.name for one in _component(job, following).operators if one.kind == "consolidate"]
    return tuple(Migrate(name, following, component) for name in chosen)


def categories(component: ModelComponent, following: Sequence[ModelComponent] = ()) -> tuple[Category, ...]:
    """Return how the partitions of a component may migrate, the fastest category first (section 5).

    Parameters
    ----------
    component : ModelComponent
        The component.
    following : sequence of ModelComponent
        Those that read it: state that stays behind is merged if each begins with a consolidate operator.

    Returns
    -------
    tuple of str
        The categories.
    """
    if not component.stateful:
        return ("instant",)
    merged = bool(following) and all(one.operators[0].kind == "consolidate" for one in following)
    windowed = all(one.windowed for one in component.operators if one.kind == "compute")
    found: list[Category] = ["instant"] if component.flexible and merged else []
    return (*found, "disruptive", "smooth") if windowed else (*found, "disruptive")


def _component(job: Job, name: str) -> ModelComponent:
    if name not in job:
        raise PlanningError(f"there is no component {name!r}: the components are {sorted(job)}")
    return job[name]
