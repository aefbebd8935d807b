"""Serialisation: snapshots and decisions as plain values, and recordings of snapshots as bytes for replay.

A recording is text with one JSON value per line: a header, then the snapshots. It is lossless: numbers are written as
Python's `repr`, arrays as base64 of their bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_elastic.vocab.compute_measure import ComputeMeasure
from dask_elastic.vocab.cores.core_change import CoreChange
from dask_elastic.vocab.ended_group_move import EndedGroupMove
from dask_elastic.vocab.errors import PlanningError
from dask_elastic.vocab.group_flow import GroupFlow
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Decision, HomeChange, HomeForecast, StrategyCost
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot, SourceHome, Traffic

_FORMAT = "dask_elastic snapshots"
_VERSION = 1
_ARRAYS = ("shard_load", "shard_bytes")


def dumps(snapshots: Iterable[Snapshot], pause: Callable[[], None] = lambda: None) -> bytes:
    """Serialise snapshots as a recording.

    Parameters
    ----------
    snapshots : iterable of Snapshot
        The snapshots, oldest first.
    pause : callable
        Called after each executor, so that a CPU-bound thread can yield.

    Returns
    -------
    bytes
        UTF-8 text, one JSON value per line.

    Examples
    --------
    >>> loads(dumps([Snapshot(now=1.5, nodes=(), jobs=())]))[0].now
    1.5
    """
    header = _encoded({"format": _FORMAT, "version": _VERSION})
    return b"\n".join([header, *[_line(snapshot, pause) for snapshot in snapshots], b""])


def loads(data: bytes) -> list[Snapshot]:
    """Read the snapshots of a recording.

    Parameters
    ----------
    data : bytes
        A recording, as `dumps` returns it.

    Returns
    -------
    list of Snapshot
        The snapshots, oldest first.

    Raises
    ------
    PlanningError
        If the data is not a recording, has another version, or a line is damaged; the message names the line.
    """
    lines = data.splitlines()
    header = _parse(lines[0] if lines else b"", 1)
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise PlanningError(
            "line 1: this is not a recording of dask_elastic snapshots; give a file that save_snapshots wrote."
        )
    if header.get("version") != _VERSION:
        raise PlanningError(
            f"line 1: the recording has version {header.get('version')!r}; this release reads version {_VERSION}."
        )
    found = []
    for number, line in enumerate(lines[1:], 2):
        value = _parse(line, number)
        try:
            found.append(snapshot_from_dict(value))
        except (KeyError, TypeError, ValueError, PlanningError) as error:
            raise PlanningError(f"line {number} is not a snapshot: {type(error).__name__}: {error}") from error
    return found


def snapshot_to_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot as numbers, strings, lists and dictionaries with string keys.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.

    Returns
    -------
    dict
        Plain values that JSON and msgpack can encode.
    """
    return {
        "now": float(snapshot.now),
        "nodes": [_plain(node) for node in snapshot.nodes],
        "jobs": [
            _plain(job)
            | {
                "executors": [_executor_to_dict(executor) for executor in job.executors],
                "strategies": dict(job.strategies),
            }
            for job in snapshot.jobs
        ],
    }


def snapshot_from_dict(value: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot that `snapshot_to_dict` converted.

    Parameters
    ----------
    value : mapping
        The result of `snapshot_to_dict`.

    Returns
    -------
    Snapshot
        The snapshot.

    Raises
    ------
    KeyError, TypeError, ValueError, PlanningError
        If the value does not describe a snapshot.
    """
    return Snapshot(
        now=value["now"],
        nodes=tuple(NodeSnapshot(**node) for node in value["nodes"]),
        jobs=tuple(
            JobSnapshot(
                **{
                    **job,
                    "executors": tuple(map(_executor_from_dict, job["executors"])),
                    "sources": tuple(SourceHome(*source) for source in job.get("sources", ())),
                    "group_moves": tuple(EndedGroupMove(*move) for move in job.get("group_moves", ())),
                }
            )
            for job in value["jobs"]
        ),
    )


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """Return a decision as numbers, strings, lists and dictionaries with string keys.

    Parameters
    ----------
    decision : Decision
        The decision.

    Returns
    -------
    dict
        Plain values that JSON and msgpack can encode.
    """
    return _plain(decision) | {
        "wanted": [[*_names(executor), int(count)] for executor, count in decision.wanted.items()],
        "changes": [_change_to_dict(change) for change in decision.changes],
        "bound": list(decision.bound),
        "homes": [home_to_dict(change) | {"executor": _names(change.executor)} for change in decision.homes],
        "others": list(decision.others),
    }


def decision_from_dict(value: Mapping[str, Any]) -> Decision:
    """Return the decision that `decision_to_dict` converted.

    Parameters
    ----------
    value : mapping
        The result of `decision_to_dict`.

    Returns
    -------
    Decision
        The decision.
    """
    return Decision(
        **{
            **value,
            "wanted": {ExecutorId(name, index): count for name, index, count in value["wanted"]},
            "changes": tuple(map(_change_from_dict, value["changes"])),
            "bound": tuple(value["bound"]),
            "homes": tuple(map(_home_from_dict, value.get("homes", ()))),
            "others": tuple(value.get("others", ())),
        }
    )


def home_to_dict(change: HomeChange) -> dict[str, Any]:
    """Return the move of a home as plain values, except for the executor."""
    forecast = None if change.forecast is None else asdict(change.forecast)
    if forecast is not None:
        forecast["costs"] = list(forecast["costs"])
    return _plain(change) | {"forecast": forecast}


def _home_from_dict(value: Mapping[str, Any]) -> HomeChange:
    forecast = value.get("forecast")
    if forecast is not None:
        # Earlier recordings have delays, in another unit.
        costs = tuple(StrategyCost(**cost) for cost in forecast["costs"] if "waiting" in cost)
        forecast = HomeForecast(**{**forecast, "costs": costs})
    return HomeChange(**{**value, "executor": _identity(value["executor"]), "forecast": forecast})


def _line(snapshot: Snapshot, pause: Callable[[], None]) -> bytes:
    """Encode a snapshot, one executor at a time: other threads wait while JSON is encoded, in a large job 60 ms."""
    without = tuple(replace(job, executors=()) for job in snapshot.jobs)
    outline = snapshot_to_dict(replace(snapshot, jobs=without))
    jobs = []
    for job, known in zip(snapshot.jobs, outline.pop("jobs"), strict=True):
        executors = []
        for executor in job.executors:
            executors.append(_encoded(_executor_to_dict(executor)))
            pause()
        del known["executors"]
        jobs.append(_with_list(known, "executors", executors))
    return _with_list(outline, "jobs", jobs)


def _with_list(outline: dict[str, Any], name: str, elements: list[bytes]) -> bytes:
    """Encode a dictionary with one more entry, a list of encoded elements."""
    return b"".join([_encoded(outline)[:-1], b',"', name.encode(), b'":[', b",".join(elements), b"]}"])


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _plain(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, with NumPy numbers as Python numbers."""
    found = {}
    for field in fields(record):
        value = getattr(record, field.name)
        found[field.name] = value.item() if isinstance(value, np.generic) else value
    return found


def _executor_to_dict(executor: ExecutorSnapshot) -> dict[str, Any]:
    arrays = {name: _encode(getattr(executor, name)) for name in _ARRAYS}
    flows = [[one.operator, _encode(one.source), _encode(one.target), _encode(one.rate)] for one in executor.flows]
    groups = None if executor.groups is None else executor.groups.tolist()
    own = {
        "executor": _names(executor.executor),
        "cores": _pairs(executor.cores),
        "flows": flows,
        "groups": groups,
        "traffic": tuple(executor.traffic),
    }
    return _plain(executor) | arrays | own


def _executor_from_dict(value: Mapping[str, Any]) -> ExecutorSnapshot:
    arrays = {name: _decode(value[name]) for name in _ARRAYS}
    own: dict[str, Any] = {
        "executor": _identity(value["executor"]),
        "cores": _mapping(value["cores"]),
        "traffic": tuple(Traffic(*part) for part in value.get("traffic", ())),
        "flows": tuple(_flow(*part) for part in value.get("flows", ())),
    }
    if value.get("groups") is not None:
        own["groups"] = np.array(value["groups"], np.int64)
    if value.get("windows") is not None:
        own["windows"] = RowCounts(*value["windows"])
    own["computes"] = tuple(_compute(*part) for part in value.get("computes", ()))
    return ExecutorSnapshot(**{**value, **arrays, **own})


def _flow(operator: str, source: str, target: str, rate: str) -> GroupFlow:
    arrays = [np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8") for text in (source, target, rate)]
    return GroupFlow(operator, arrays[0].astype(np.int64), arrays[1].astype(np.int64), arrays[2].astype(np.float64))


def _compute(
    operator: str, state_bytes: int, seconds: float, windows: list[int] | None, open_windows: int | None
) -> ComputeMeasure:
    return ComputeMeasure(
        operator, state_bytes, seconds, None if windows is None else RowCounts(*windows), open_windows
    )


def _change_to_dict(change: CoreChange) -> dict[str, Any]:
    cores = {"before": _pairs(change.before), "after": _pairs(change.after)}
    return _plain(change) | cores | {"executor": _names(change.executor)}


def _change_from_dict(value: Mapping[str, Any]) -> CoreChange:
    cores = {"before": _mapping(value["before"]), "after": _mapping(value["after"])}
    return CoreChange(**{**value, **cores, "executor": _identity(value["executor"])})


def _names(executor: ExecutorId) -> list[Any]:
    return [executor.component, int(executor.index)]


def _identity(value: Sequence[Any]) -> ExecutorId:
    component, index = value
    return ExecutorId(component, index)


def _pairs(cores: Mapping[int, int]) -> list[list[int]]:
    return [[int(node), int(count)] for node, count in cores.items()]


def _mapping(pairs: Iterable[Sequence[int]]) -> dict[int, int]:
    return {int(node): int(count) for node, count in pairs}


def _encode(array: NDArray[np.float64] | NDArray[np.int64] | None) -> str | None:
    return None if array is None else base64.b64encode(np.asarray(array, dtype="<f8").tobytes()).decode()


def _decode(text: str | None) -> NDArray[np.float64] | None:
    if text is None:
        return None
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)


def _parse(line: bytes, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, binascii.Error) as error:
        raise PlanningError(f"line {number} is damaged: {error}") from error
