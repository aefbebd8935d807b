"""How often the state of an executor is copied to its next home before the executor leaves the present one."""

from __future__ import annotations

from dataclasses import dataclass

SMALL_BYTES = 256 << 10
"""A round with so few bytes is the last one: what has changed meanwhile costs about a round trip."""

MOST_OF_LAST = 0.7
"""A round is the last one unless it had at most this share of the bytes of the round before."""


@dataclass
class CopyRounds:
    """Decides whether to copy once more what has changed during the last round.

    Each round takes about as long as it has bytes, so that rounds shrink if state is copied faster than it changes.
    Once they shrink no more, the rows that change are most of the bytes, and further rounds would copy the same again.

    Parameters
    ----------
    small : int
        A round with at most so many bytes is the last one.

    Attributes
    ----------
    nbytes : int
        The bytes of all rounds.
    count : int
        The number of rounds.

    Examples
    --------
    >>> rounds = CopyRounds()
    >>> [rounds.goes_on(nbytes) for nbytes in (32_000_000, 9_000_000, 2_500_000, 2_400_000)]
    [True, True, True, False]
    >>> rounds.count, rounds.nbytes, CopyRounds().goes_on(1_000)
    (4, 45900000, False)
    """

    small: int = SMALL_BYTES
    nbytes: int = 0
    count: int = 0
    _last: int | None = None

    def goes_on(self, nbytes: int) -> bool:
        """Note a round, and return whether another one follows.

        Parameters
        ----------
        nbytes : int
            What was copied in this round.

        Returns
        -------
        bool
            False after the last round.
        """
        before, self._last = self._last, nbytes
        self.count += 1
        self.nbytes += nbytes
        return nbytes > self.small and (before is None or nbytes <= MOST_OF_LAST * before)
