"""The shipped defaults of all options under ``elastic`` in the Dask configuration."""

from __future__ import annotations

from importlib.resources import files

import dask.config
import yaml


def load_defaults() -> None:
    """Add the shipped defaults to the Dask configuration; values that the user has configured stay."""
    text = files("dask_elastic").joinpath("elastic.yaml").read_text(encoding="utf-8")
    dask.config.update_defaults(yaml.safe_load(text))
