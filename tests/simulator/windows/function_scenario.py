"""Scenarios of functions over windows, at each level, whose results are those of the aggregates of `window_job`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from window_scenario import WindowScenario

import dask_elastic as de

NUMBERS = pa.list_(pa.int64())


def per_batch(rows, instances):
    """Return one result per instance, computed from the offsets."""
    starts, values = instances.offsets[:-1], rows["value"].to_numpy()
    offsets = pa.array(instances.offsets.astype(np.int32))
    assert rows["window_end"].equals(instances.table["window_end"].take(pa.array(instances.ids)))
    assert rows["key"].equals(instances.table["key"].take(pa.array(instances.ids)))
    results = {
        "rows": pa.array(instances.lengths),
        "sum": pa.array(np.add.reduceat(values, starts)),
        "most": pa.array(np.maximum.reduceat(values, starts)),
        "numbers": pa.ListArray.from_arrays(offsets, rows["number"]),
    }
    table = instances.table
    for name, column in results.items():
        table = table.append_column(name, column)
    return table


@de.per_key
def per_key(key, rows, window):
    """Return one result."""
    assert set(rows["key"].to_pylist()) == {key}
    assert window.start < window.end
    values, numbers = rows["value"].to_pylist(), rows["number"].to_pylist()
    return {"rows": len(values), "sum": sum(values), "most": max(values), "numbers": numbers}


@de.per_row(output={"rows": pa.int64(), "sum": pa.int64(), "most": pa.int64(), "numbers": NUMBERS})
def per_row(row, state):
    """Return one result with the last row."""
    seen = state.setdefault("seen", [])
    seen.append((row["value"], row["number"]))
    if not state.is_last:
        return None
    values, numbers = zip(*seen, strict=True)
    return {"rows": len(seen), "sum": sum(values), "most": max(values), "numbers": list(numbers)}


LEVELS = (per_batch, per_key, per_row)


class FunctionScenario(WindowScenario):
    """A `WindowScenario` with a function."""

    @property
    def logic(self) -> Any:
        """The logic of the compute."""
        return LEVELS[self.seed // 3 % len(LEVELS)]
