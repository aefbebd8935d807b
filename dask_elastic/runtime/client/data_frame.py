"""Tables for users. Importing pandas takes half a second, which programs that read no table save."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def data_frame(rows: Iterable[Any], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a data frame.

    Examples
    --------
    >>> data_frame([("per_letter", 3)], ["operator", "rows"]).to_dict("list")
    {'operator': ['per_letter'], 'rows': [3]}
    """
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)
