"""Formats values as strict JSON, without NaN and infinity."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any, indent: int | None = 2) -> str:
    """Format a value as JSON; infinite numbers and NaN, which JSON lacks, become null.

    Parameters
    ----------
    value : dict, list, str, number, bool or None
        The value.
    indent : int, optional
        Spaces per level; None for a single line.

    Returns
    -------
    str
        The JSON text.

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
