"""What has failed, for ``pytest --lf``, of runs of pytest that end beside each other, as those of `make test` do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

KEY = "cache/lastfailed"


class LastFailed:
    """Keeps what other runs have noted since this one began: pytest writes what it knew then, and its own failures.

    Parameters
    ----------
    cache : pytest.Cache
        The cache of this run, which others use, too.
    """

    def __init__(self, cache: Any):
        self.cache = cache
        self.began = self._noted()

    def _noted(self) -> dict[str, bool]:
        return dict(self.cache.get(KEY, {}))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """Add what has failed in other runs, and remove what has passed there."""
        others = self._noted()
        result = yield
        own = self._noted()
        kept = {name: True for name in own if name in others or name not in self.began}
        kept |= {name: True for name in others if name not in self.began}
        if kept != own:
            self.cache.set(KEY, kept)
        return result


def register(config: pytest.Config) -> None:
    """Add it to a run, unless that has no cache, or is a process of pytest-xdist."""
    if hasattr(config, "cache") and not hasattr(config, "workerinput") and not config.getoption("cacheshow"):
        config.pluginmanager.register(LastFailed(config.cache), "elastic-last-failed")
