"""Runs other seeds than the test suite for a given time: ``make soak SECONDS=3600``.

Ends at the first seed that fails, and prints its error and a shrunk scenario.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from durable_scenario import DurableScenario
from scenario import Scenario

BEYOND_THE_SUITE = 1_000_000


def main() -> None:
    """Run seeds until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--first", type=int, default=BEYOND_THE_SUITE, help="the first seed")
    given = parser.parse_args()
    deadline = time.monotonic() + given.seconds
    happened: Counter[str] = Counter()
    seed = given.first
    while time.monotonic() < deadline:
        # Every fourth seed has no outages: then every node may be a home, and more moves complete.
        happened += Scenario(seed, outages=0.0 if seed % 4 == 0 else 0.25).check().happened()
        happened += DurableScenario(seed).check().happened
        seed += 1
        if seed % 500 == 0:
            print(f"{seed - given.first} seeds: {dict(happened)}", flush=True)
    print(f"{seed - given.first} seeds from {given.first}, none failed: {dict(happened)}")


if __name__ == "__main__":
    main()
