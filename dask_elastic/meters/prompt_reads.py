"""Whether the reads of a source have returned at once lately, so that rows may wait for what is read next."""

from __future__ import annotations

PROMPT_SECONDS = 0.002
"""A read that takes longer has waited for something."""

REMEMBERED = 256
"""Reads since the last one that waited, until reads count as prompt again: many sources wait at each page of theirs."""


class PromptReads:
    """Counts the reads since the last one that waited.

    Examples
    --------
    >>> reads = PromptReads()
    >>> reads.are_prompt
    False
    >>> for _ in range(256):
    ...     reads.add(1e-5)
    >>> reads.are_prompt
    True
    >>> reads.add(0.01)
    >>> reads.are_prompt
    False
    """

    __slots__ = ("_prompt",)

    def __init__(self) -> None:
        self._prompt = 0

    def add(self, seconds: float) -> None:
        """Add a read that took so many seconds."""
        self._prompt = 0 if seconds > PROMPT_SECONDS else self._prompt + 1

    @property
    def are_prompt(self) -> bool:
        """Whether the next read is expected to return at once."""
        return self._prompt >= REMEMBERED
