"""The motivating job of Enorm, section 2: loans per area and in all, over windows of 10 minutes to 24 hours.

A map computes the interest rate of each loan. One compute has the rate, the income and the share of approved loans for
each area and five windows, whose partial results are shared. Another has the same of all areas, from the results of ten
minutes of the first: sums can be added up again, so that its single task gets few rows. The stream is made from a seed,
and up to a minute out of order. Both are compared with pandas.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.distributed import Client

import dask_elastic as de
from dask_elastic import aggregate as agg

WINDOWS = ["10min", "30min", "1h", "6h", "24h"]
AREAS, LOANS = 50, 40_000
SUMS = ["loans", "approved", "rates", "incomes"]


def make_loans() -> pa.Table:
    """Return the loans of two days."""
    random = np.random.default_rng(7)
    seconds = np.sort(random.integers(0, 2 * 86_400, LOANS)) - random.integers(0, 60, LOANS)
    amount = np.round(random.lognormal(9, 1, LOANS), 2)
    years = random.integers(1, 6, LOANS)
    return pa.table(
        {
            "user": random.integers(0, 10_000, LOANS),
            "area": np.char.add("area-", random.integers(0, AREAS, LOANS).astype(str)),
            "date": (np.datetime64("2016-06-20", "us") + seconds.astype("timedelta64[s]")),
            "approval": random.random(LOANS) < 0.7,
            "amount": amount,
            "return": np.round(amount * (1 + random.uniform(0.02, 0.2, LOANS)) ** years, 2),
            "lendingTime": years,
            "income": np.round(random.lognormal(10.5, 0.5, LOANS), 2),
        }
    )


def add_rate(loans: pa.RecordBatch) -> pa.RecordBatch:
    """Compute the yearly interest rate."""
    factor = pc.divide(loans["return"], loans["amount"])
    rate = pc.subtract(pc.power(factor, pc.divide(1.0, loans["lendingTime"])), 1.0)
    approved = loans["approval"].cast(pa.int64())
    columns = [loans["area"], loans["date"], approved, rate, loans["income"]]
    return pa.record_batch(columns, names=["area", "date", "approved", "rate", "income"])


def build(loans: pa.Table) -> de.Topology:
    topology = de.Topology("loans")
    source = topology.source("loans", de.sources.Arrow(loans, event_time="date", slack="1min", batch_rows=1_000))
    logic = {
        "loans": agg.Count(),
        "approved": agg.Sum("approved"),
        "rates": agg.Sum("rate"),
        "incomes": agg.Sum("income"),
    }
    per_area = source.map(add_rate).key_by("area").window(WINDOWS).compute(logic, name="per_area")
    per_area.sink(de.sinks.Collect(), name="areas")
    # All five windows come in one stream; those of ten minutes contain each loan once.
    length = pc.subtract(pc.field("window_end"), pc.field("window_start"))
    shortest = per_area.filter(length == pa.scalar(600_000_000, pa.duration("us")), name="shortest")
    in_all = shortest.window(WINDOWS).compute({name: agg.Sum(name) for name in SUMS}, name="in_all")
    in_all.sink(de.sinks.Collect(), name="all")
    return topology


def by_pandas(loans: pa.Table, keys: list[str]) -> pd.DataFrame:
    """Return the sums of all windows."""
    (batch,) = loans.combine_chunks().to_batches()
    frame = add_rate(batch).to_pandas().assign(loans=1)
    parts = []
    for window in WINDOWS:
        start = frame["date"].dt.floor(window)
        parts.append(frame.assign(window_start=start, window_end=start + pd.Timedelta(window)))
    grouped = pd.concat(parts).groupby([*keys, "window_start", "window_end"])
    return grouped.agg(
        loans=("loans", "sum"), approved=("approved", "sum"), rates=("rate", "sum"), incomes=("income", "sum")
    )


def main() -> int:
    loans = make_loans()
    with Client(n_workers=2, threads_per_worker=2, dashboard_address=":0") as client:
        job = de.submit(build(loans), client)
        job.wait(timeout=60)
        areas, every = job.collect("areas").to_pandas(), job.collect("all").to_pandas()
    for found, keys in ((areas, ["area"]), (every, [])):
        results = found.set_index([*keys, "window_start", "window_end"]).sort_index()
        pd.testing.assert_frame_equal(
            results, by_pandas(loans, keys), check_dtype=False, check_index_type=False, rtol=1e-9
        )
    for length, windows in every.groupby(every["window_end"] - every["window_start"]):
        last = windows.sort_values("window_start").iloc[-1]
        rate, approved = last["rates"] / last["loans"], last["approved"] / last["loans"]
        span = str(length).removeprefix("0 days ")
        print(f"{span:>15}: {last['loans']:6,} loans, {rate:.1%} interest, {approved:.0%} approved")
    print(f"{len(areas):,} results per area and {len(every):,} in all are equal to those of pandas")
    return 0


if __name__ == "__main__":
    sys.exit(main())
