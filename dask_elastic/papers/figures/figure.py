"""What a figure is: numbers that a seeded computation makes, and a drawing of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Figure:
    """One figure or table of a paper, made again.

    Parameters
    ----------
    name : str
        How the command line knows it, such as ``"albic-2"``; also the name of its files.
    source : str
        Where it comes from, such as ``"ALBIC, figure 2"``.
    title : str
        What it shows, in one line.
    compute : callable
        ``compute(seed, quick) -> Table``: the numbers, in long form, one row per point. With `quick` it takes seconds:
        fewer repetitions and smaller settings of the same shape.
    draw : callable
        ``draw(table, axes)``: draws the numbers on a matplotlib ``Axes``.
    """

    name: str
    source: str
    title: str
    compute: Callable[[int, bool], pa.Table]
    draw: Callable[[pa.Table, Any], None]
