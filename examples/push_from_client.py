"""A program that pushes rows into a running job and reads the state in between."""

from __future__ import annotations

import sys
import time

import pyarrow as pa
from dask.distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg

SCHEMA = pa.schema({"account": pa.string(), "amount": pa.int64()})
MONTHS = [
    {"account": ["ann", "bob", "ann"], "amount": [100, 40, -30]},
    {"account": ["cid", "ann"], "amount": [5, 10]},
    {"account": ["bob", "bob", "cid"], "amount": [-15, 7, 20]},
]
BALANCES = {"ann": 80, "bob": 32, "cid": 25}


def build() -> de.Topology:
    topology = de.Topology("accounts")
    bookings = topology.source("bookings", de.sources.Push(SCHEMA))
    bookings.key_by("account").compute({"balance": agg.Sum("amount"), "bookings": agg.Count()}, name="accounts")
    return topology


def wait_for(job: de.Job, bookings: int) -> None:
    """Wait until the state has all bookings: `send` returns when the rows have left, which is earlier."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        state = job.state("accounts").to_arrow()
        if state.num_rows and sum(state["bookings"].to_pylist()) == bookings:
            return
        time.sleep(0.05)
    raise TimeoutError(f"the state does not contain {bookings} bookings after 20 s")


def main() -> int:
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        job = de.submit(build(), client)
        sent = 0
        for number, month in enumerate(MONTHS, start=1):
            job.send(pa.table(month, schema=SCHEMA))
            sent += len(month["account"])
            wait_for(job, sent)
            print(f"after month {number}: ann has {job.state('accounts').get('ann')}")
        job.end_of_input()
        job.wait(timeout=60)
        rows = job.state("accounts").to_arrow().to_pylist()
    balances = {row["account"]: row["balance"] for row in rows}
    print("final balances:", dict(sorted(balances.items())))
    return 0 if balances == BALANCES else 1


if __name__ == "__main__":
    sys.exit(main())
