"""Seeded simulations of windows of functions with a merge, at all three levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from instant_scenario import InstantScenario
from sharing_scenario import SharingScenario
from smooth_scenario import SmoothScenario
from window_scenario import WindowScenario

from dask_elastic.topology.logic_level import per_key, per_row
from dask_elastic.topology.windows.merged_function import OUTPUT, MergedFunction

COLUMNS = pa.schema({"rows": pa.int64(), "sum": pa.int64(), "most": pa.int64(), "numbers": pa.list_(pa.int64())})


@per_key(output=COLUMNS)
def of_key(key, rows):
    values = rows["value"].to_pylist()
    numbers = sorted(rows["number"].to_pylist())
    return {"rows": len(values), "sum": sum(values), "most": max(values), "numbers": numbers}


@per_row(output=COLUMNS)
def of_row(row, state):
    state["rows"] = state.get("rows", 0) + 1
    state["sum"] = state.get("sum", 0) + row["value"]
    state["most"] = max(state.get("most", 0), row["value"])
    state["numbers"] = sorted([*state.get("numbers", []), row["number"]])


def of_batch(rows, parts):
    bounds = zip(parts.offsets, parts.lengths, strict=False)
    return pa.Table.from_pylist([of_key(None, rows.slice(*bound)) for bound in bounds], COLUMNS)


def merge(one, other):
    return {
        "rows": one["rows"] + other["rows"],
        "sum": one["sum"] + other["sum"],
        "most": max(one["most"], other["most"]),
        "numbers": sorted(one["numbers"] + other["numbers"]),
    }


def merge_batches(left, right):
    numbers = [sorted(pair) for pair in map(list.__add__, left["numbers"].to_pylist(), right["numbers"].to_pylist())]
    rows, total = (pc.add(left[name], right[name]) for name in ("rows", "sum"))
    return {"rows": rows, "sum": total, "most": pc.max_element_wise(left["most"], right["most"]), "numbers": numbers}


LOGIC = tuple(
    {OUTPUT: MergedFunction(*functions, COLUMNS, ("key",))}
    for functions in ((of_batch, merge_batches), (of_key, merge), (of_row, merge))
)


class MergedLogic:
    """The logic of a scenario, by its seed."""

    seed: int

    @property
    def logic(self) -> Mapping[str, MergedFunction]:
        return LOGIC[self.seed % len(LOGIC)]


@dataclass(frozen=True)
class MergedScenario(MergedLogic, WindowScenario):
    """A `WindowScenario` of functions with a merge."""


@dataclass(frozen=True)
class MergedInstantScenario(MergedLogic, InstantScenario):
    """An `InstantScenario` of functions with a merge."""


@dataclass(frozen=True)
class MergedSmoothScenario(MergedLogic, SmoothScenario):
    """A `SmoothScenario` of functions with a merge."""


@dataclass(frozen=True)
class MergedSharingScenario(MergedLogic, SharingScenario):
    """A `SharingScenario` of functions with a merge."""


SCENARIOS = (MergedScenario, MergedInstantScenario, MergedSmoothScenario, MergedSharingScenario)
