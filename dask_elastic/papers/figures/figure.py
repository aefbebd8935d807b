"""A figure: a seeded computation of its numbers, and a drawing of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Figure:
    """A reproduced figure or table of a paper.

    Parameters
    ----------
    name : str
        Its name on the command line, such as ``"albic-2"``, and in file names.
    source : str
        Its source, such as ``"ALBIC, figure 2"``.
    title : str
        Its title, one line.
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
