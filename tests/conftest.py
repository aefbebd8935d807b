"""Data for tests: the real recordings where available, otherwise seeded stand-ins of the same schema."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark" / "conf"))

# A test that takes long, because the machine is slow or busy, does not fail.
settings.register_profile("any speed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

REAL_DATA = Path(__file__).parents[2] / "shared" / "data"
SEED = 20_130_101
Generator = np.random.Generator

SMALL_WORDS = pa.dictionary(pa.int8(), pa.string())
WORDS = pa.dictionary(pa.int16(), pa.string())
MOMENT = pa.timestamp("ms")

SCHEMAS = {
    "flights_nyc2013/flights.parquet": pa.schema(
        {
            "sched_dep": MOMENT,
            **dict.fromkeys(("dep_delay", "arr_delay"), pa.int16()),
            **dict.fromkeys(("sched_dep_time", "dep_time", "sched_arr_time", "arr_time"), pa.int16()),
            "carrier": SMALL_WORDS,
            "flight": pa.int16(),
            "tailnum": WORDS,
            **dict.fromkeys(("origin", "dest"), SMALL_WORDS),
            **dict.fromkeys(("air_time", "distance"), pa.int16()),
        }
    ),
    "retail_orders/orders.parquet": pa.schema(
        {
            "order_id": pa.string(),
            "stock_id": WORDS,
            "side": SMALL_WORDS,
            "quantity": pa.int32(),
            "unit_price": pa.float64(),
            "ts": MOMENT,
            "customer_id": pa.int32(),
            "country": SMALL_WORDS,
        }
    ),
    "wiki_edits/edits.parquet": pa.schema(
        {
            "ts": MOMENT,
            "channel": SMALL_WORDS,
            "namespace": WORDS,
            "page": pa.string(),
            "user_id": pa.int64(),
            **dict.fromkeys(("is_anonymous", "is_robot", "is_new", "is_minor"), pa.bool_()),
            "country": SMALL_WORDS,
            **dict.fromkeys(("delta", "added", "deleted"), pa.int64()),
            "comment": pa.string(),
        }
    ),
    "orders_bitstamp/orders.parquet": pa.schema(
        {
            "order_id": pa.int64(),
            "ts": MOMENT,
            "exchange_ts": MOMENT,
            "price": pa.float64(),
            "volume_e8": pa.int64(),
            "action": SMALL_WORDS,
            "side": SMALL_WORDS,
        }
    ),
}


WORK_STEPS = 1_500
USUAL_SECONDS = 0.001
"""Seconds that `fixed_work` takes on the machine for which bounds of time in tests were chosen."""


@pytest.fixture(scope="session")
def slowness() -> Callable[[], float]:
    """Return a function that measures by which factor this machine is slower now; a bound of time is multiplied by it.

    At least 1. The quickest of several runs counts, because other processes share the machine.
    """

    def measure() -> float:
        spent = []
        for _ in range(20):
            start = time.perf_counter()
            fixed_work()
            spent.append(time.perf_counter() - start)
        return max(1.0, min(spent) / USUAL_SECONDS)

    return measure


def fixed_work() -> int:
    """Do the kind of work that planning does: loops in Python over small arrays."""
    values, found = np.arange(64.0), 0
    for number in range(WORK_STEPS):
        found += int(values.argmax()) + len({number: values[number % 64]})
    return found


@pytest.fixture(scope="session")
def stand_in() -> Callable[[str], pa.Table]:
    """Return a function that makes the stand-in of a recording."""
    return make_stand_in


@pytest.fixture(scope="session")
def recording() -> Callable[[str], Path | None]:
    """Return a function that finds a real recording, or None where there are none."""
    return find_recording


@pytest.fixture(scope="session")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a name such as "flights_nyc2013/flights.parquet" to a file."""
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        real = find_recording(name)
        if real is not None:
            return real
        if name not in made:
            made[name] = tmp_path_factory.mktemp("stand_in") / Path(name).name
            pq.write_table(make_stand_in(name), made[name])
        return made[name]

    return path


def find_recording(name: str) -> Path | None:
    """Look in $ELASTIC_TEST_DATA, else beside the repository."""
    folder = os.environ.get("ELASTIC_TEST_DATA")
    if folder and not Path(folder).is_dir():
        raise FileNotFoundError(f"ELASTIC_TEST_DATA is {folder!r}, which is no directory")
    path = (Path(folder) if folder else REAL_DATA) / name
    return path if path.is_file() else None


def make_stand_in(name: str) -> pa.Table:
    """Make rows that look like those of a recording: its types, skew, nulls and order of time."""
    makers = {
        "flights_nyc2013/flights.parquet": flights,
        "retail_orders/orders.parquet": retail_orders,
        "wiki_edits/edits.parquet": wiki_edits,
        "orders_bitstamp/orders.parquet": bitstamp_orders,
    }
    schema = SCHEMAS[name]
    columns = makers[name](np.random.default_rng(SEED))
    return pa.table([pa.array(columns[field.name]).cast(field.type) for field in schema], schema=schema)


def flights(random: Generator, rows: int = 30_000) -> dict[str, pa.Array]:
    """Flights of a year; one in forty is cancelled and has no actual times."""
    scheduled = times(random, rows, "2013-01-01T05:15", 365 * 86_400, step=60)
    minute = (scheduled.astype("datetime64[m]").astype(np.int64)) % 1440
    delay = np.clip(random.exponential(25, rows) - 12, -40, 1300).astype(np.int64)
    air = random.integers(20, 690, rows)
    cancelled = random.random(rows) < 0.025
    hhmm = {
        "sched_dep_time": clock(minute),
        "sched_arr_time": clock(minute + air + 30),
        "dep_time": clock(minute + delay),
        "arr_time": clock(minute + delay + air + 30),
    }
    actual = {"dep_delay": delay, "arr_delay": delay + random.integers(-30, 30, rows), "air_time": air}
    actual |= {name: hhmm[name] for name in ("dep_time", "arr_time")}
    return {
        "sched_dep": pa.array(scheduled),
        **{name: pa.array(hhmm[name]) for name in ("sched_dep_time", "sched_arr_time")},
        **{name: pa.array(values, mask=cancelled) for name, values in actual.items()},
        "carrier": words(random, rows, "C{}", 16, 0.96),
        "flight": pa.array(random.integers(1, 8501, rows)),
        "tailnum": words(random, rows, "N{}MQ", 4043, 0.53, nulls=0.0075),
        "origin": words(random, rows, "{}", 3, 0.1, names=["EWR", "JFK", "LGA"]),
        "dest": words(random, rows, "D{}", 105, 0.81),
        "distance": pa.array(random.integers(17, 4984, rows)),
    }


def retail_orders(random: Generator, rows: int = 30_000) -> dict[str, pa.Array]:
    """Orders over many stock codes; a quarter without customer, some returned, some of no price."""
    returned = random.random(rows) < 0.017
    number = np.char.add(np.where(returned, "C", ""), (536_365 + np.arange(rows) // 20).astype(str))
    price = np.where(random.random(rows) < 0.005, 0.0, np.round(random.gamma(1.2, 3.0, rows), 2))
    quantity = random.geometric(0.1, rows)
    return {
        "order_id": pa.array(number.tolist()),
        "stock_id": words(random, rows, "{}A", 4070, 0.65),
        "side": pa.array(np.where(returned, "return", "buy").tolist()),
        "quantity": pa.array(np.where(returned, -quantity, quantity)),
        "unit_price": pa.array(price),
        "ts": pa.array(times(random, rows, "2010-12-01T08:26", 373 * 86_400, step=60)),
        "customer_id": pa.array(random.integers(12_346, 18_288, rows), mask=random.random(rows) < 0.25),
        "country": words(random, rows, "Country {}", 38, 3.18),
    }


def wiki_edits(random: Generator, rows: int = 10_000) -> dict[str, pa.Array]:
    """One day of edits; a tenth are anonymous, and only these have a country."""
    anonymous = random.random(rows) < 0.1
    users = random.integers(1, 2**63 - 1, 4000)
    added = np.where(random.random(rows) < 0.6, random.geometric(0.01, rows), 0)
    deleted = np.where(added == 0, random.integers(0, 501, rows), 0)
    flags = {"is_robot": 0.4, "is_new": 0.1, "is_minor": 0.5}
    country = words(random, rows, "X{}", 114, 1.2)
    return {
        "ts": pa.array(times(random, rows, "2015-09-12T00:46:58.771", 83_580, step=0.001)),
        "channel": words(random, rows, "#w{}.wikipedia", 51, 1.37),
        "namespace": words(random, rows, "Namespace {}", 265, 1.8),
        "page": words(random, rows, "Page {} \u00e4\u4e2d", 8000, 0.28),
        "user_id": pa.array(users[zipf(random, rows, len(users), 0.93)]),
        "is_anonymous": pa.array(anonymous),
        **{name: pa.array(random.random(rows) < share) for name, share in flags.items()},
        "country": pa.array(np.where(anonymous, country.to_numpy(zero_copy_only=False), None).tolist()),
        "delta": pa.array(added - deleted),
        "added": pa.array(added),
        "deleted": pa.array(deleted),
        "comment": words(random, rows, "clean up {} using [[Project:AWB|AWB]]", 5000, 0.99),
    }


def bitstamp_orders(random: Generator, rows: int = 10_000) -> dict[str, pa.Array]:
    """Limit orders of one exchange: each is created, and mostly deleted a little later."""
    received = times(random, rows, "2015-05-01T00:00:04.518", 18_278, step=0.001)
    action = random.choice(["created", "changed", "deleted"], rows, p=[0.494, 0.012, 0.494])
    volume = np.where(action == "deleted", 0, random.integers(10**6, 2 * 10**9, rows))
    return {
        "order_id": pa.array(65_595_000 + np.sort(random.integers(0, rows // 2, rows))),
        "ts": pa.array(received),
        "exchange_ts": pa.array(received - random.gamma(0.3, 10_000, rows).astype("timedelta64[ms]")),
        "price": pa.array(np.round(236.5 + random.standard_t(3, rows), 2)),
        "volume_e8": pa.array(volume),
        "action": pa.array(action.tolist()),
        "side": words(random, rows, "{}", 2, 1.14, names=["bid", "ask"]),
    }


def zipf(random: Generator, rows: int, count: int, exponent: float) -> np.ndarray:
    """Draw ranks below `count` with a share of rank to the power of minus `exponent`."""
    share = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return random.choice(count, rows, p=share / share.sum())


def words(
    random: Generator,
    rows: int,
    form: str,
    count: int,
    exponent: float,
    nulls: float = 0.0,
    names: list[str] | None = None,
) -> pa.Array:
    """Draw text keys with a Zipf share, of which some are null."""
    values = pa.array(names or [form.format(rank) for rank in range(count)])
    return values.take(pa.array(zipf(random, rows, count, exponent), mask=random.random(rows) < nulls))


def times(random: Generator, rows: int, start: str, seconds: float, step: float) -> np.ndarray:
    """Draw ascending moments, each a multiple of `step` seconds after the start."""
    steps = np.sort(random.integers(0, int(seconds / step), rows))
    steps[0] = 0
    return np.datetime64(start, "ms") + (steps * round(step * 1000)).astype("timedelta64[ms]")


def clock(minutes: np.ndarray) -> np.ndarray:
    """Turn minutes of the day into hhmm as one number."""
    minutes = minutes % 1440
    return minutes // 60 * 100 + minutes % 60
