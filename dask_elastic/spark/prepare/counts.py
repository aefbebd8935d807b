"""Numbers of rows read, kept, and dropped by reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Counts:
    """Numbers of rows read, kept, and dropped by reason.

    Parameters
    ----------
    read : int
        Rows that were read.
    dropped : mapping of str to int
        Rows that were dropped, by reason, in the order in which the reasons are tested. A row with several reasons
        counts for the first one.

    Examples
    --------
    >>> counts = Counts(336_776, {"cancelled": 8_255, "no arrival delay": 1_175})
    >>> counts.kept
    327346
    >>> print(counts)
    336,776 rows read
      8,255 dropped: cancelled
      1,175 dropped: no arrival delay
    327,346 rows kept
    """

    read: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Rows that were kept."""
        return self.read - sum(self.dropped.values())

    def __str__(self) -> str:
        width = len(f"{self.read:,}")
        lines = [(self.read, "rows read")]
        lines += [(rows, f"dropped: {reason}") for reason, rows in self.dropped.items()]
        lines.append((self.kept, "rows kept"))
        return "\n".join(f"{rows:>{width},} {what}" for rows, what in lines)
