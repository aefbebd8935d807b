"""Bytes per second from each key group of an executor to each group of the operators behind it, from samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dask_elastic.meters.rate import Rate
from dask_elastic.vocab.group_flow import OTHERS, GroupFlow

Floats = NDArray[np.float64]

HALF_LIFE = 5.0
"""Seconds in which samples lose half of their weight."""

RECORD_SECONDS = 5.0
"""The window over which state records are counted."""

KEPT = 4
"""Groups of an operator to which the traffic of a group is reported one by one, at most."""

FORGOTTEN = 1e-3
"""Samples of so few rows, by their weight, are dropped."""


class GroupFlows:
    """Estimates traffic by the bytes that follow from a row, or from a state record, of each group.

    Parameters
    ----------
    half_life : float
        Seconds in which samples lose half of their weight.

    Attributes
    ----------
    records : Rate
        Counts the state records, each of which concerns every group.

    Notes
    -----
    ALBIC, section 4.3.2, step 1, needs the pairs with more traffic than the mean of their group. Only these are
    reported one by one. What a group sends is the bytes per sampled row times the rows that arrive for it, so that
    groups may be sampled differently often.

    Examples
    --------
    >>> flows = GroupFlows()
    >>> flows.note(1, 10, False, {"totals": np.array([0.0, 600.0, 100.0, 100.0])})
    >>> [flow] = flows.measured(0.0, rows=np.array([0.0, 50.0]))
    >>> flow.operator, flow.source.tolist(), flow.target.tolist(), flow.rate.tolist()
    ('totals', [1, 1], [1, -1], [3000.0, 1000.0])
    """

    def __init__(self, half_life: float = HALF_LIFE):
        self.half_life = half_life
        # By group, and whether it is of state records: what was sampled, and the bytes by operator and group there.
        self._inputs: dict[tuple[int, bool], float] = {}
        self._sent: dict[tuple[int, bool], dict[str, Floats]] = {}
        self._read_at: float | None = None
        self.records = Rate(RECORD_SECONDS)

    def note(self, group: int, inputs: int, fired: bool, sent: Mapping[str, Floats]) -> None:
        """Add a sample.

        Parameters
        ----------
        group : int
            The group whose rows were processed by themselves.
        inputs : int
            Their number, or 1 for a state record.
        fired : bool
            Whether it was a state record.
        sent : mapping of str to float array
            The bytes that followed, by operator, for each group of it.
        """
        key = group, fired
        self._inputs[key] = self._inputs.get(key, 0.0) + inputs
        totals = self._sent.setdefault(key, {})
        for operator, nbytes in sent.items():
            totals[operator] = totals[operator] + nbytes if operator in totals else nbytes

    def measured(self, now: float, rows: Floats) -> tuple[GroupFlow, ...]:
        """Return the traffic, by operator; called for each report.

        Parameters
        ----------
        now : float
            The time in seconds. Nothing loses weight when the clock is set back.
        rows : float array
            Rows per second that arrive for each group.
        """
        self._age(now)
        records = self.records.per_second(now)
        rates: dict[str, dict[int, Floats]] = {}
        for (group, fired), totals in self._sent.items():
            scale = (records if fired else float(rows[group])) / self._inputs[group, fired]
            for operator, nbytes in totals.items():
                by_group = rates.setdefault(operator, {})
                by_group[group] = nbytes * scale + by_group.get(group, 0.0)
        found = (_flow(operator, by_group) for operator, by_group in rates.items())
        return tuple(flow for flow in found if len(flow.rate))

    def _age(self, now: float) -> None:
        since = now if self._read_at is None else self._read_at
        self._read_at = now
        left = 0.5 ** (max(now - since, 0.0) / self.half_life)
        for key, inputs in [*self._inputs.items()]:
            self._inputs[key] = inputs * left
            self._sent[key] = {operator: nbytes * left for operator, nbytes in self._sent[key].items()}
            if self._inputs[key] < FORGOTTEN:
                del self._inputs[key], self._sent[key]


def _flow(operator: str, by_group: Mapping[int, Floats]) -> GroupFlow:
    """Return the pairs above the mean of their group, at most `KEPT`, and the rest of each group."""
    parts: list[tuple[int, int, float]] = []
    for group, rates in sorted(by_group.items()):
        total = float(rates.sum())
        if total <= 0:
            continue
        kept = np.argsort(-rates, kind="stable")[:KEPT]
        kept = kept[rates[kept] > total / len(rates)]
        parts += [(group, int(target), float(rates[target])) for target in kept]
        rest = total - float(rates[kept].sum())
        if rest > 1e-9 * total:
            parts.append((group, OTHERS, rest))
    source, target, rate = zip(*parts, strict=True) if parts else ((), (), ())
    return GroupFlow(operator, np.array(source, np.int64), np.array(target, np.int64), np.array(rate, dtype=np.float64))
