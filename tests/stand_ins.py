"""Seeded stand-ins for the recordings: the same columns and types, with alike skew, nulls and order of time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

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
    "weather_nyc2013/weather.parquet": pa.schema(
        {
            "station": SMALL_WORDS,
            "ts": MOMENT,
            **dict.fromkeys(("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust"), pa.float64()),
            **dict.fromkeys(("precip", "pressure", "visib"), pa.float64()),
        }
    ),
    "commit_texts/commits.parquet": pa.schema(
        {
            **dict.fromkeys(("arrival_ts", "event_ts"), MOMENT),
            "author_id": pa.int64(),
            "is_merge": pa.bool_(),
            "text": pa.string(),
        }
    ),
}
"""Columns of each recording, by its folder and file."""


def make_stand_in(name: str) -> pa.Table:
    """Make rows that look like those of a recording: its types, skew, nulls and order of time."""
    makers = {
        "flights_nyc2013/flights.parquet": flights,
        "retail_orders/orders.parquet": retail_orders,
        "wiki_edits/edits.parquet": wiki_edits,
        "orders_bitstamp/orders.parquet": bitstamp_orders,
        "weather_nyc2013/weather.parquet": weather,
        "commit_texts/commits.parquet": commit_texts,
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


def weather(random: Generator) -> dict[str, pa.Array]:
    """Hourly reports of three stations for a year without gaps, with some values missing."""
    first, end = np.datetime64("2013-01-01T06", "ms"), np.datetime64("2013-12-30T23", "ms")
    hours = np.arange(first, end, np.timedelta64(1, "h"))
    rows = 3 * len(hours)
    columns = {"station": pa.array(np.tile(["EWR", "JFK", "LGA"], len(hours)).tolist()), "ts": np.repeat(hours, 3)}
    for measure in SCHEMAS["weather_nyc2013/weather.parquet"].names[2:]:
        values = np.round(random.normal(50, 10, rows), 1)
        # As in the recording, visibility is never missing.
        missing = {"wind_gust": 0.8, "visib": 0.0}.get(measure, 0.01)
        columns[measure] = pa.array(values, mask=random.random(rows) < missing)
    return columns


def commit_texts(random: Generator, rows: int = 10_000) -> dict[str, pa.Array]:
    """Texts in order of arrival; a fifth are late, and some have an event time in the future."""
    arrival = times(random, rows, "2004-11-24", 10**9, step=1)
    late = np.where(random.random(rows) < 0.22, random.integers(1, 10**6, rows), 0)
    late[:: rows // 10] = -60
    vocabulary = np.array(["Fix", "the", "typo", "in", "docs", "Merge", "branch", "of", "tests", "\u00e4"])
    return {
        "arrival_ts": arrival,
        "event_ts": arrival - late * np.timedelta64(1, "s"),
        "author_id": random.integers(0, 500, rows),
        "is_merge": random.random(rows) < 0.25,
        "text": [" ".join(random.choice(vocabulary, size)) for size in random.integers(1, 12, rows)],
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
