from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dask_elastic.spark import prepare
from dask_elastic.spark.prepare import PreparationError
from dask_elastic.vocab.errors import SchemaMismatch

ZONE = "America/New_York"
REASONS = ["no scheduled departure", "no such local time", "cancelled", "no arrival delay", "no tail number"]


@pytest.fixture(scope="module")
def flown(sample):
    """Flights with added faults that the recording lacks."""
    frame = sample("flights")
    moments = frame["sched_dep"].astype("datetime64[us]").copy()
    moments.iloc[5] = pd.NaT
    moments.iloc[[10, 11]] = pd.Timestamp("2013-03-10 02:30")
    moments.iloc[[20, 21]] = pd.Timestamp("2013-11-03 01:30")
    frame["sched_dep"] = moments
    # Rows with faulty times must not have other faults.
    frame.loc[frame.index[[5, 10, 11, 20, 21]], ["dep_delay", "arr_delay"]] = 1.0
    frame.loc[frame.index[[5, 10, 11, 20, 21]], "tailnum"] = "N1"
    return frame


@pytest.fixture(scope="module")
def read_flights(spark, flown, store, tmp_path_factory):
    path = store(flown, "flights", tmp_path_factory.mktemp("flights") / "flights.parquet")
    return prepare.read(spark, path, "flights")


@pytest.fixture(scope="module")
def read_weather(spark, sample, store, tmp_path_factory):
    path = store(sample("weather"), "weather", tmp_path_factory.mktemp("weather") / "weather.parquet")
    return prepare.read(spark, path, "weather")


def judged_by_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    local = frame["sched_dep"].dt.tz_localize(ZONE, ambiguous=np.ones(len(frame), dtype=bool), nonexistent="NaT")
    conditions = [
        frame["sched_dep"].isna(),
        frame["sched_dep"].notna() & local.isna(),
        frame["dep_delay"].isna(),
        frame["arr_delay"].isna(),
        frame["tailnum"].isna(),
    ]
    reason = pd.Series(None, index=frame.index, dtype=object)
    for condition, name in reversed(list(zip(conditions, REASONS, strict=True))):
        reason[condition] = name
    event_time = local.dt.tz_convert("UTC").dt.tz_localize(None)
    return frame.assign(event_time=event_time, route=frame["origin"] + "-" + frame["dest"], reason=reason)


def in_order(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values(list(frame.columns), ignore_index=True)


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert set(found.columns) == set(expected.columns)
    pd.testing.assert_frame_equal(in_order(found[expected.columns]), in_order(expected), check_dtype=False)


def test_cleaned_flights_equal_those_of_pandas(read_flights, flown):
    prepared = prepare.flights(read_flights)
    judged = judged_by_pandas(flown)
    found = prepared.rows.toArrow().to_pandas()
    same(found, judged[judged["reason"].isna()].drop(columns="reason"))
    assert found["event_time"].is_monotonic_increasing
    counts = prepared.counts()
    expected = judged["reason"].value_counts()
    assert counts.dropped == {reason: expected.get(reason, 0) for reason in REASONS}
    assert (counts.read, counts.kept) == (len(flown), len(found))
    assert min(counts.dropped[reason] for reason in REASONS[:3]) > 0
    dropped = prepared.dropped.toArrow().to_pandas().rename(columns={"_dropped": "reason"})
    same(dropped.drop(columns="event_time"), judged[judged["reason"].notna()].drop(columns="event_time"))


def test_repeated_hour_is_the_first_one_and_skipped_hour_is_dropped(read_flights):
    judged = prepare.flights(read_flights).judged.toArrow().to_pandas()
    twice = judged[judged["sched_dep"] == pd.Timestamp("2013-11-03 01:30")]
    assert twice["event_time"].tolist() == [pd.Timestamp("2013-11-03 05:30")] * 2
    missing = judged[judged["sched_dep"] == pd.Timestamp("2013-03-10 02:30")]
    assert missing["_dropped"].tolist() == ["no such local time"] * 2


def test_time_zone_of_session_does_not_change_flights(spark, read_flights, read_weather):
    def joined():
        prepared = prepare.with_weather(prepare.flights(read_flights), prepare.weather(read_weather))
        return prepared.rows.toArrow()

    before = joined()
    spark.conf.set("spark.sql.session.timeZone", "Australia/Lord_Howe")
    try:
        assert joined().equals(before)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_rows_with_a_kept_reason_are_not_dropped(read_flights, flown):
    counts = prepare.flights(read_flights, keep=["no arrival delay", "cancelled"]).counts()
    assert set(counts.dropped) == {*REASONS} - {"no arrival delay", "cancelled"}
    with pytest.raises(
        PreparationError, match=r"keep names unknown reasons \['canceled'\]; the reasons are .*'cancelled'"
    ):
        prepare.flights(read_flights, keep=["canceled"])


def test_flights_are_joined_with_weather_of_their_hour(read_flights, read_weather, flown, sample):
    prepared = prepare.with_weather(prepare.flights(read_flights), prepare.weather(read_weather))
    judged = judged_by_pandas(flown)
    good = judged[judged["reason"].isna()].drop(columns="reason")
    reports = sample("weather").rename(columns={"station": "origin", "ts": "hour"})
    expected = good.assign(hour=good["event_time"].dt.floor("h")).merge(
        reports, on=["origin", "hour"], how="left", indicator=True
    )
    met = expected["_merge"] == "both"
    found = prepared.rows.toArrow().to_pandas()
    same(found, expected[met].drop(columns=["hour", "_merge"]))
    counts = prepared.counts()
    assert list(counts.dropped) == [*REASONS, "no weather of that hour"]
    assert counts.dropped["no weather of that hour"] == (~met).sum() > 0
    assert counts.read == len(flown)


def test_flights_without_weather_are_kept_on_request(read_flights, read_weather):
    flights, reports = prepare.flights(read_flights), prepare.weather(read_weather)
    kept = prepare.with_weather(flights, reports, keep=["no weather of that hour"])
    assert kept.counts().kept == flights.counts().kept
    assert (
        kept.rows.where("visib is null").count()
        == prepare.with_weather(flights, reports).counts().dropped["no weather of that hour"]
    )


def test_weather_keeps_one_report_per_station_and_hour(spark):
    reports = spark.sql(
        """
        select * from values
        ('JFK', timestamp_ntz '2013-01-01 10:00:00', 40.0), ('JFK', timestamp_ntz '2013-01-01 10:51:00', 39.0),
        ('JFK', timestamp_ntz '2013-01-01 11:00:00', 41.0), ('LGA', timestamp_ntz '2013-01-01 10:00:00', 38.0),
        (null, timestamp_ntz '2013-01-01 10:00:00', 1.0), ('LGA', null, 2.0) as reports(station, ts, temp)
        """
    )
    prepared = prepare.weather(reports)
    found = [(row.station, row.event_time.hour, float(row.temp)) for row in prepared.rows.collect()]
    assert found == [("JFK", 10, 39.0), ("LGA", 10, 38.0), ("JFK", 11, 41.0)]
    assert prepared.counts().dropped == {"no station": 1, "no time": 1, "another report of that hour": 1}


def test_invalid_columns_and_zone_are_named(spark, read_flights):
    with pytest.raises(
        SchemaMismatch, match=r"flights: columns \['sched_dep', 'dep_delay'.*are missing; the columns are \['id'\]"
    ):
        prepare.flights(spark.range(1))
    zoned = read_flights.withColumn("sched_dep", read_flights["sched_dep"].cast("timestamp"))
    with pytest.raises(SchemaMismatch, match="column 'sched_dep' has type timestamp instead of timestamp_ntz"):
        prepare.flights(zoned)
    with pytest.raises(PreparationError, match="zone is 'New York', which is not a time zone"):
        prepare.flights(read_flights, zone="New York")


def test_stream_of_flights_is_prepared_like_a_batch(spark, read_flights, read_weather, tmp_path):
    read_flights.repartition(3).write.parquet(str(tmp_path / "in"))
    arriving = prepare.read(
        spark, str(tmp_path / "in"), "flights", format="parquet", stream=True, options={"maxFilesPerTrigger": "1"}
    )
    reports = prepare.weather(read_weather)
    prepared = prepare.with_weather(prepare.flights(arriving), reports)
    query = (
        prepared.observed("cleaned").writeStream.format("memory").queryName("joined").trigger(availableNow=True).start()
    )
    assert query.awaitTermination(400)
    batch = prepare.with_weather(prepare.flights(read_flights), reports)
    same(spark.table("joined").toArrow().to_pandas(), batch.rows.toArrow().to_pandas())
    assert len(query.recentProgress) >= 3
    assert prepared.counted(query.recentProgress, "cleaned") == batch.counts()
    assert prepared.rows.columns == spark.table("joined").columns
    with pytest.raises(PreparationError, match="`counts` needs a batch"):
        prepared.counts()
    with pytest.raises(PreparationError, match="`observed` needs a stream"):
        batch.observed("cleaned")
    with pytest.raises(PreparationError, match="the weather is a stream"):
        prepare.with_weather(prepare.flights(read_flights), prepared)
