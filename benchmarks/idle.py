"""CPU time of an idle job: workers and scheduler with it, less the same without it.

Prints one JSON line, in cores, medians of the windows: `bare` is a cluster without dask_elastic, `without` one that
hosts it but has no job, `with` one with a job whose source gets no rows. They run side by side, and `beyond` is the
median difference of the last two in the same window.

    python benchmarks/idle.py [--executors 20] [--workers 2] [--threads 2] [--seconds 20] [--settle 15] [--windows 3]
"""

from __future__ import annotations

import argparse
import json
import statistics

from _idle_clusters import IdleSetting, side_by_side


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--settle", type=float, default=15, help="seconds without rows before the first window")
    parser.add_argument("--windows", type=int, default=3)
    setting = IdleSetting(**vars(parser.parse_args()))
    found = {kind: [cores.total for cores in windows] for kind, windows in side_by_side(setting).items()}
    beyond = [a - b for a, b in zip(found["with"], found["without"], strict=True)]
    line = {
        "benchmark": "idle",
        "executors": setting.executors,
        "workers": setting.workers,
        **{kind: round(statistics.median(windows), 4) for kind, windows in found.items()},
        "beyond": round(statistics.median(beyond), 4),
        "windows": {kind: [round(cores, 4) for cores in windows] for kind, windows in found.items()},
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
