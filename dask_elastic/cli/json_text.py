"""Values as JSON that every program can read."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any, indent: int | None = 2) -> str:
    """Return a value as JSON; numbers that JSON does not have, infinite ones and NaN, become null.

    Parameters
    ----------
    value : dict, list, str, number, bool or None
        The value.
    indent : int, optional
        Columns by which each level goes in; None is all on one line.

    Examples
    --------
    >>> json_text({"predicted": float("inf"), "cores": [1, 2]}, indent=None)
    '{"predicted": null, "cores": [1, 2]}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
