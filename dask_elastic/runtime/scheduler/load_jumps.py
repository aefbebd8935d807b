"""Whether the load of shards has jumped between two reports of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def has_jumped(report: Mapping[str, Any], before: Mapping[str, Any] | None) -> bool:
    """Tell whether the load of some executor's shards has jumped since the report before."""
    return before is not None and _jumps(report) > _jumps(before)


def _jumps(report: Mapping[str, Any]) -> int:
    return sum(detail["jumps"] for detail in report["details"])
