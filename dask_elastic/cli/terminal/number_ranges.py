"""Formats numbers as ranges."""

from __future__ import annotations

from collections.abc import Iterable


def number_ranges(numbers: Iterable[int]) -> str:
    """Format numbers in ascending order; three and more that follow each other become a range.

    Examples
    --------
    >>> number_ranges([9, 1, 2, 3, 4, 6, 7])
    '1–4, 6, 7, 9'
    """
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(
        f"{first}–{last}" if last - first > 1 else ", ".join(map(str, range(first, last + 1))) for first, last in ranges
    )
