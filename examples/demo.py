"""The demonstration: a year of New York's flights in about a minute, with cores that follow the load by themselves.

The same as ``dask elastic demo``. To read it, begin with the topology and the load that shifts:

- dask_elastic/cli/demo/flight_delays.py: the topology, and how service times are emulated
- dask_elastic/cli/demo/hot_routes.py: which routes are hot in which month
- dask_elastic/cli/demo/replay.py: submitting it with a latency target, and following it
- dask_elastic/cli/demo/checks.py: comparing with pandas, and whether shards and cores moved
"""

from __future__ import annotations

import sys

from dask_elastic.cli.main import elastic

if __name__ == "__main__":
    elastic(["demo", *sys.argv[1:]], prog_name="examples/demo.py")
