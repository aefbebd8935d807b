"""What has failed, for ``pytest --lf``, of runs of pytest that end beside each other, as those of `make test` do."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
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

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Have other runs that end wait: pytest-xdist ends its processes between the steps of the end."""
        try:
            lock = (self.cache.mkdir("last_failed") / "lock").open("w")
        except OSError:
            # Then nothing is noted either, of which pytest warns.
            yield
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        """Add what has failed in other runs, and remove what has passed there."""
        with self._locked():
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
