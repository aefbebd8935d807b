"""The catalogue of figures by name; computes and draws a figure and writes its files."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pyarrow.parquet as pq

from dask_elastic.papers import figures as package
from dask_elastic.papers.figures.figure import Figure
from dask_elastic.vocab.errors import ElasticError, MissingExtra

_SIZE, _RESOLUTION = (8.0, 5.0), 120


def figures() -> dict[str, Figure]:
    """Return all figures, paper by paper in the order of their modules' names.

    Returns
    -------
    dict of str to Figure
        The ``FIGURES`` of each module of this package, by name.

    Raises
    ------
    ElasticError
        If two figures have one name.

    Examples
    --------
    >>> figures()["albic-2"].source
    'ALBIC, figure 2'
    """
    found: dict[str, Figure] = {}
    for name in sorted(module.name for module in iter_modules(package.__path__)):
        for figure in getattr(import_module(f"{package.__name__}.{name}"), "FIGURES", ()):
            if figure.name in found:
                raise ElasticError(f"two figures are named {figure.name!r}: the second is in module {name!r}.")
            found[figure.name] = figure
    return found


def write(figure: Figure, directory: Path, seed: int = 0, quick: bool = False) -> tuple[Path, Path]:
    """Compute a figure, and write its numbers and its drawing.

    Parameters
    ----------
    figure : Figure
        The figure.
    directory : Path
        The directory for the files; it is created if missing.
    seed : int
        Seeds the computation.
    quick : bool
        Make a small version.

    Returns
    -------
    tuple of Path
        The Parquet file with the numbers, and the PNG file with the drawing, named as the figure.

    Raises
    ------
    MissingExtra
        If matplotlib is not installed; raised before anything is computed.
    """
    canvas = _canvas()
    directory.mkdir(parents=True, exist_ok=True)
    table = figure.compute(seed, quick)
    numbers, drawing = (directory / f"{figure.name}.{ending}" for ending in ("parquet", "png"))
    pq.write_table(table, numbers)
    axes = canvas.add_subplot()
    axes.set_title(f"{figure.title}\n({figure.source}{', small' if quick else ''})", fontsize=10)
    figure.draw(table, axes)
    canvas.savefig(drawing, dpi=_RESOLUTION)
    return numbers, drawing


def _canvas() -> Any:
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'dask-elastic[papers]'") from error
    return Canvas(figsize=_SIZE, layout="constrained")
