"""The graph of a running job's operators: as a tree on the console, as a drawing, and as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dask_elastic.cli.terminal.number_ranges import number_ranges
from dask_elastic.cli.terminal.quantities import count
from dask_elastic.runtime.protocol.job_description import ComponentDescription, ExecutorAssignment, JobDescription
from dask_elastic.runtime.protocol.reports import ExecutorReport, InstanceRows
from dask_elastic.topology import diagram
from dask_elastic.topology.diagram import DrawnBox
from dask_elastic.vocab.counted import counted

if TYPE_CHECKING:
    from rich.tree import Tree

COMPUTE = "compute"
STYLES = {"source": "green", COMPUTE: "yellow", "sink": "blue"}
"""Styles of the kinds of components, similar to those of the drawing."""


@dataclass(frozen=True)
class JobGraph:
    """The components of a job, and where they run.

    Parameters
    ----------
    job : JobDescription
        The job.
    assignment : sequence of ExecutorAssignment
        Tasks and shards of the executors, as far as they are to be shown.
    """

    job: JobDescription
    assignment: Sequence[ExecutorAssignment] = ()

    def executors(self, component: ComponentDescription) -> list[ExecutorReport]:
        """Return the executors of a component, in order."""
        found = [one for one in self.job.executors if one.operator == component.name]
        return sorted(found, key=lambda one: one.executor)

    def instances(self, component: ComponentDescription) -> list[InstanceRows]:
        """Return the instances of a source or sink, in order."""
        found = [one for one in (*self.job.sources, *self.job.sinks) if one.operator == component.name]
        return sorted(found, key=lambda one: one.instance)

    def tasks(self, executor: ExecutorReport) -> list[tuple[int, str, list[int]]]:
        """Return number, worker and shards of each task of an executor."""
        return [
            (task, self.job.nodes[node], [shard for shard, owner in enumerate(part.owner) if owner == task])
            for part in self.assignment
            if (part.operator, part.executor) == (executor.operator, executor.executor)
            for task, node in sorted(part.node_of_task.items())
        ]

    def summary(self, component: ComponentDescription) -> list[str]:
        """Return what a component has, and its rate while the job runs, in a few short texts."""
        if component.kind == COMPUTE:
            executors = self.executors(component)
            texts = [counted(len(executors), "executor"), counted(sum(one.cores for one in executors), "core")]
            rate = f"{count(sum(one.arrival_rate for one in executors))} tuples/s"
        else:
            instances = self.instances(component)
            texts = [counted(len(instances), "instance"), counted(sum(one.rows for one in instances), "row")]
            rate = f"{count(sum(one.rate for one in instances))} rows/s"
        return [*texts, rate] if self.job.live and component.kind != "sink" else texts

    def values(self) -> dict[str, Any]:
        """Return the graph as values that JSON can represent."""
        return {
            "name": self.job.name,
            "status": self.job.status.value,
            "components": [self._component_values(component) for component in self.job.components],
        }

    def _component_values(self, component: ComponentDescription) -> dict[str, Any]:
        found = {
            "name": component.name,
            "kind": component.kind,
            "inputs": list(component.inputs),
            "operators": list(component.operators),
            "pushed": component.pushed,
        }
        if component.kind != COMPUTE:
            return {
                **found,
                "instances": [{"instance": one.instance, "rows": one.rows} for one in self.instances(component)],
            }
        return {**found, "executors": [*map(self._executor_values, self.executors(component))]}

    def _executor_values(self, executor: ExecutorReport) -> dict[str, Any]:
        tasks = [{"task": task, "node": node, "shards": shards} for task, node, shards in self.tasks(executor)]
        home = self.job.nodes[executor.node]
        return {"executor": executor.executor, "home": home, "cores": executor.cores, "tasks": tasks}

    def svg(self) -> str:
        """Return a drawing of the graph as an SVG document."""
        boxes = [self._box(component) for component in self.job.components]
        edges = [(start, component.name) for component in self.job.components for start in component.inputs]
        return diagram.svg(self.job.name, boxes, edges)

    def _box(self, component: ComponentDescription) -> DrawnBox:
        lines = [component.kind, *_fused(component), *self.summary(component)]
        return DrawnBox(
            component.name, component.kind, lines, "\n".join([f"{component.kind} {component.name}", *lines[1:]])
        )


def _fused(component: ComponentDescription) -> list[str]:
    """Return the operators that run in the component's threads beside the one that it is named after."""
    others = [name for name in component.operators if name != component.name]
    return [f"with {', '.join(others)}"] if others else []


def job_tree(graph: JobGraph) -> Tree:
    """Return the graph as a tree for the console.

    Parameters
    ----------
    graph : JobGraph
        The graph. Tasks are shown if it has an assignment.
    """
    from rich.text import Text
    from rich.tree import Tree

    job = graph.job
    root = Tree(Text.assemble((job.name, "bold"), f"  {job.status.value}"))
    branches: dict[str, Tree] = {}
    for component in job.components:
        above = next((branches[name] for name in component.inputs if name in branches), root)
        branches[component.name] = branch = above.add(
            Text.assemble((component.name, f"bold {STYLES[component.kind]}"), f"  {_details(graph, component)}")
        )
        for executor in graph.executors(component):
            leaf = branch.add(Text(_executor_text(graph, executor)))
            for text in _task_texts(graph, executor):
                leaf.add(Text(text))
    return root


def _details(graph: JobGraph, component: ComponentDescription) -> str:
    other = [f"also reads {', '.join(component.inputs[1:])}"] if len(component.inputs) > 1 else []
    return ", ".join([component.kind, *_fused(component), *graph.summary(component), *other])


def _executor_text(graph: JobGraph, executor: ExecutorReport) -> str:
    home = graph.job.nodes[executor.node]
    rate = f", {count(executor.arrival_rate)} tuples/s" if graph.job.live else ""
    return f"{executor.operator}[{executor.executor}] at {home}: {counted(executor.cores, 'core')}{rate}"


def _task_texts(graph: JobGraph, executor: ExecutorReport) -> Iterator[str]:
    for task, node, shards in graph.tasks(executor):
        place = "" if node == graph.job.nodes[executor.node] else f" at {node}"
        listed = f": {number_ranges(shards)}" if shards else ""
        yield f"task {task}{place}, {counted(len(shards), 'shard')}{listed}"
