"""Renderings of a topology: text, SVG, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import pyarrow.compute as pc

from dask_elastic.topology import diagram
from dask_elastic.topology.diagram import FONT, LONGEST_NAME, DrawnBox, shortened
from dask_elastic.topology.graph import OperatorGraph
from dask_elastic.topology.operators import Compute, MapOperator, Operator, SinkOperator, SourceOperator
from dask_elastic.topology.windows.configuration import configuration
from dask_elastic.topology.windows.late_rows import LateRows
from dask_elastic.topology.windows.results import result_keys

MOST_DETAILS = 5


def describe(topology: OperatorGraph) -> str:
    """Return the topology as text, one line per operator.

    Parameters
    ----------
    topology : OperatorGraph
        The topology, valid or not.

    Returns
    -------
    str
        Lines with aligned columns.
    """
    operators = topology.operators
    count = f"{len(operators)} operator{'' if len(operators) == 1 else 's'}"
    rows = []
    for operator in operators:
        producers = ", ".join(producer.name for producer in topology.inputs(operator.name))
        rows.append(
            (
                operator.name,
                operator.kind,
                "; ".join(shortened(line, LONGEST_NAME * 2) for line in _details(operator)),
                f"<- {producers}" if producers else "",
            )
        )
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    lines = [f"Topology {topology.name!r}: {count}"]
    for name, kind, details, producers in rows:
        line = f"  {name:{widths[0]}}  {kind:{widths[1]}}  {details:{widths[2]}}   {producers}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def html(topology: OperatorGraph) -> str:
    """Return the topology as HTML for a notebook.

    Parameters
    ----------
    topology : OperatorGraph
        The topology, valid or not.

    Returns
    -------
    str
        An HTML element that contains the drawing.
    """
    caption = f'<div style="font: 600 13px {FONT}; margin: 4px 0">{escape(topology.name)}</div>'
    return f'<div style="overflow-x: auto">{caption}{svg(topology)}</div>'


def svg(topology: OperatorGraph, task_of: Mapping[str, str] | None = None) -> str:
    """Return a drawing of the topology as an SVG document.

    Parameters
    ----------
    topology : OperatorGraph
        The topology, valid or not; edges that close a cycle are dashed.
    task_of : mapping of str to str, optional
        By compute, the one in whose task it runs.

    Returns
    -------
    str
        The document, with all text escaped.
    """
    tasks = task_of or {}
    boxes = (_box(topology, operator, tasks.get(operator.name)) for operator in topology.operators)
    return diagram.svg(topology.name, boxes, topology.edges)


def _details(operator: Operator) -> list[str]:
    """Return what an operator does, as one short line or several."""
    if isinstance(operator, SourceOperator):
        source = operator.source
        lines = [type(source).__name__]
        if source.rate is not None:
            lines.append(f"{source.rate:,g} rows/s")
        if source.event_time is not None:
            lines.append(f"event time {source.event_time}")
        return lines
    if isinstance(operator, SinkOperator):
        return [type(operator.sink).__name__]
    if isinstance(operator, Compute):
        return [*_keys(operator), *_windows(operator), *_logic(operator)]
    if isinstance(operator, LateRows):
        return ["late rows"]
    logic = operator.function if isinstance(operator, MapOperator) else operator.predicate
    lines = [_expression(logic) if isinstance(logic, pc.Expression) else _function(logic)]
    if operator.columns is not None:
        lines.append(f"reads {', '.join(operator.columns)}")
    return lines


def _keys(operator: Compute) -> list[str]:
    keys = result_keys(operator.keys)
    return [f"by {', '.join(keys)}"] if keys else ["over all rows"]


def _windows(operator: Compute) -> list[str]:
    return [] if operator.windowing is None else [f"windows {operator.windowing}"]


def _logic(operator: Compute) -> list[str]:
    if operator.aggregates is not None:
        return [f"{output} = {aggregate!r}" for output, aggregate in operator.aggregates.items()]
    if operator.join is not None:
        return [str(operator.join)]
    lines = [_function(operator.function)]
    if operator.state:
        lines.append(f"state {', '.join(operator.state)}")
    return lines


def _expression(expression: pc.Expression) -> str:
    text = str(expression)
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _function(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "a lambda" if name == "<lambda>" else f"{name}()"


def _lines(operator: Operator, task: str | None, kind: str) -> list[str]:
    """Return the lines below a box's name: its kind, and the details that are not shown elsewhere."""
    details = _details(operator)
    shown_elsewhere = isinstance(operator, Compute) or details[0] == f"{operator.name}()"
    first = kind if shown_elsewhere else f"{kind} {details[0]}"
    lines = [first, *_place(task), *details[1:]]
    if len(lines) > MOST_DETAILS:
        lines = [*lines[: MOST_DETAILS - 1], f"and {len(lines) - MOST_DETAILS + 1} more"]
    return lines


def _label(consumer: Operator) -> str:
    return shortened(", ".join(result_keys(consumer.keys)), LONGEST_NAME) if isinstance(consumer, Compute) else ""


def _place(task: str | None) -> list[str]:
    return [] if task is None else [f"in the task of {task}"]


def _box(topology: OperatorGraph, operator: Operator, task: str | None) -> DrawnBox:
    kind, may = operator.kind, []
    if isinstance(operator, Compute) and task is None:
        found = configuration(topology, operator.name)
        kind, may = f"compute: {found.kind}", [str(found)]
    title = "\n".join((f"{operator.kind} {operator.name}", *_place(task), *_details(operator), *may))
    return DrawnBox(operator.name, operator.kind, _lines(operator, task, kind), title, _label(operator))
