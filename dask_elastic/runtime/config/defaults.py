"""The shipped defaults of all options under ``elastic`` in the Dask configuration."""

from __future__ import annotations

import difflib
import warnings
from importlib.resources import files

import dask.config
import yaml


def load_defaults() -> None:
    """Add the shipped defaults to the Dask configuration; values that the user has configured stay.

    Warns
    -----
    UserWarning
        If files or environment variables have options under ``elastic`` that do not exist; names the nearest ones.
    """
    text = files("dask_elastic").joinpath("elastic.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    dask.config.update_defaults(defaults)
    options = [*defaults["elastic"]]
    for key in dask.config.get("elastic"):
        name = str(key).replace("_", "-")
        if name not in options:
            near = difflib.get_close_matches(name, options, 1)
            hint = f": did you mean elastic.{near[0]}?" if near else ""
            warnings.warn(f"Dask's configuration has elastic.{name}, which is no option{hint}", stacklevel=2)
