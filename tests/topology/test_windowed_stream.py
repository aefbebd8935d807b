from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic import sinks, sources, windows
from dask_elastic.topology.component import build_components
from dask_elastic.topology.known_schemas import known_inputs
from dask_elastic.topology.windowing import EventWindow, SessionWindow, Windowing
from dask_elastic.topology.windows.results import bound_columns
from dask_elastic.vocab.errors import SchemaMismatch, TopologyError

HOUR = 3_600_000_000
ROWS = pa.table(
    {
        "plane": ["a", "b"],
        "delay": [3, 5],
        "at": pa.array([0, 7200], pa.timestamp("s", "UTC")),
        "until": pa.array([60, 7260], pa.timestamp("s", "UTC")),
        "window_start": [1, 2],
        "revision": [1, 2],
    }
)
COUNT = {"flights": agg.Count()}


def flights(topology=None, name="flights", **options):
    options = {"event_time": "at", **options}
    return (topology or de.Topology("delays")).source(name, sources.Arrow(ROWS, **options))


def hourly(stream, **options):
    return stream.key_by("plane").window("1h").compute(COUNT, name="hourly", **options)


def windowing_of(stream):
    return stream.topology.operator(stream.producers[0]).windowing


def results_schema(stream):
    """Return the schema of a stream that the engine knows before the job runs, as a stateful operator reads it."""
    stream.key_by("flights").compute(lambda rows, state: None, name="reader")
    return known_inputs(stream.topology)["reader"]


def test_window_is_over_the_event_time_of_the_source():
    assert windowing_of(hourly(flights())) == Windowing((EventWindow(0, HOUR, HOUR),), ("at",))


def test_event_time_is_known_behind_filters_maps_and_unions():
    topology = de.Topology("delays")
    kept = flights(topology).filter(pc.field("delay") > 3).map(lambda rows: rows)
    assert windowing_of(hourly(kept.union(flights(topology, "others")))).time == ("at",)


@pytest.mark.parametrize("time", ["until", ["until"], ("until",)])
def test_time_may_be_another_column(time):
    windowed = flights().key_by("plane").window(windows.session("30min"), time=time)
    assert windowed.windowing == Windowing((SessionWindow(HOUR // 2),), ("until",))


def test_results_of_windows_are_windowed_by_their_span():
    daily = hourly(flights()).key_by("plane").window("1d").compute({"most": agg.Max("flights")})
    assert windowing_of(daily).time == ("window_start", "window_end")


def test_options_are_part_of_the_windowing():
    result = hourly(flights(), allowed_lateness="5min", emit="updates", null_time="refuse")
    window = EventWindow(0, HOUR, HOUR)
    assert windowing_of(result) == Windowing((window,), ("at",), HOUR // 12, "updates", null_time="refuse")


def test_windowed_topology_can_be_pickled_and_drawn():
    topology = hourly(flights(), allowed_lateness="5min").topology
    assert pickle.loads(pickle.dumps(topology)).operator("hourly").windowing == topology.operator("hourly").windowing
    line = "by plane; windows 1h of at, late by 5min at most; flights = Count()"
    assert line in topology.describe()
    assert "windows 1h of at" in topology.to_svg()


def test_source_reads_the_columns_of_windows():
    topology = flights(columns=["plane", "delay", "at", "until"]).topology
    stream = de.topology.Stream(topology, ("flights",))
    stream.key_by("plane").window("1h", time=("at", "until")).compute(COUNT)
    source = build_components(topology)[0].operator.source
    assert source.known_schema().names == ["plane", "at", "until"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.date32(), pa.timestamp("us")),
    ],
)
def test_results_are_bounded_in_microseconds_or_finer_units_of_the_times(kind, expected):
    rows = ROWS.set_column(2, "at", ROWS["at"].cast(pa.timestamp("s")).cast(kind))
    stream = de.Topology("delays").source("flights", sources.Arrow(rows, event_time="at"))
    columns = {"plane": pa.string(), "window_start": expected, "window_end": expected, "flights": pa.int64()}
    assert results_schema(hourly(stream)) == pa.schema(columns)


def test_results_that_may_be_corrected_have_a_revision():
    assert results_schema(hourly(flights(), emit="updates")).names == [
        "plane", "window_start", "window_end", "revision", "flights",
    ]  # fmt: skip


def test_results_of_sessions_that_may_grow_can_be_withdrawn():
    grown = flights().key_by("plane").window(windows.session("1h")).compute(COUNT, allowed_lateness="1h")
    assert results_schema(grown).names == [
        "plane", "window_start", "window_end", "revision", "withdrawn", "flights",
    ]  # fmt: skip


def test_results_of_count_windows_are_bounded_by_numbers_of_rows():
    windowing = flights(event_time=None).key_by("plane").window(windows.count(10)).windowing
    bounds = {"window_start": pa.int64(), "window_end": pa.int64()}
    assert (windowing.time, bound_columns(windowing, {}, "counts")) == ((), bounds)


def test_results_of_count_windows_are_bounded_by_times_that_are_known():
    windowing = flights().key_by("plane").window(windows.count(10)).windowing
    assert windowing.time == ("at",)
    assert bound_columns(windowing, {"at": pa.timestamp("s")}, "counts") == dict.fromkeys(
        ("window_start", "window_end"), pa.timestamp("us")
    )


def test_windows_over_all_rows_have_one_key_that_results_lack():
    stream = flights()
    result = stream.window("1h").compute({"delay": agg.Mean("delay"), "flights": agg.Count()}, name="all")
    compute = stream.topology.operator("all")
    assert (compute.keys, compute.executors) == (("__one_key",), 1)
    assert results_schema(result).names == ["window_start", "window_end", "delay", "flights"]
    assert "over all rows; windows 1h of at" in stream.topology.describe()
    source = build_components(stream.topology)[0].operator.source
    assert source.known_schema().names == ["delay", "at"]


def test_windowed_streams_are_shown_with_their_windows():
    stream = flights()
    keyed = stream.key_by("plane").window(["10min", "1h"])
    assert repr(keyed) == "WindowedStream('flights' by 'plane', 10min, 1h of at, of topology 'delays')"
    assert repr(stream.window("1h")) == "WindowedStream('flights', 1h of at, of topology 'delays')"


def keyed(**options):
    return flights(**options).key_by("plane")


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: keyed(event_time=None).window("1h"), "source 'flights' has no event time, so its windows would never"),
        (lambda: keyed().window("1 parsec"), "stream of 'flights': the length of the window is '1 parsec'"),
        (
            lambda: keyed().window(["1h", windows.count(5)]),
            "stream of 'flights': the windows of one compute are of one",
        ),
        (
            lambda: keyed().window("1h", time=()),
            "the window 1h has no column of event time; name it with time='column'",
        ),
        (lambda: keyed().window("1h", time=5), "time is 5; give the name of a column"),
        (lambda: keyed().window("1h", time=["a", "b", "c"]), "give one column, or two"),
        (lambda: keyed().compute(COUNT, name="n").key_by("plane").window("1h"), "results of compute 'n' is not known"),
        (
            lambda: hourly(flights(), emit="updates").window("1d"),
            "compute 'hourly' may be corrected, and each revision",
        ),
        (
            lambda: hourly(flights()).key_by("plane").window("10min"),
            "'hourly' stand for 1h or more, longer than the window",
        ),
        (lambda: hourly(flights()).filter(pc.field("flights") > 1).window("59min"), "no instance would contain any"),
        (lambda: hourly(flights(), allowed_lateness=-5), "compute 'hourly': allowed_lateness is -5"),
        (lambda: hourly(flights(), allowed_lateness="later"), "compute 'hourly': allowed_lateness is 'later'"),
        (lambda: hourly(flights(), emit="often"), "compute 'hourly': emit is 'often'"),
        (lambda: hourly(flights(), late="file"), "compute 'hourly': late is 'file'; give 'drop' or 'stream'"),
        (lambda: hourly(flights()).late, "stream of 'hourly' has no late rows; only results of windows have, with"),
        (lambda: flights().late, "stream of 'flights' has no late rows"),
        (
            lambda: hourly(flights(), null_time="late"),
            "null_time='late' sends rows without a time to the",
        ),
        (
            lambda: keyed().window(windows.count(5)).compute(COUNT, name="n", emit="updates"),
            "'n': a result of a count window appears with the row that completes it",
        ),
        (lambda: hourly(flights(), executors=0), "executors is 0"),
        (lambda: hourly(flights(), shards=0), "shards is 0"),
        (lambda: hourly(flights(), store="tape"), "store"),
        (lambda: flights().window("1h").compute(COUNT, executors=2), "executors is 2; give an integer from 1 to 1"),
        (lambda: keyed().window("1h").compute(agg.Count()), "an aggregate needs an output column"),
        (lambda: keyed().window("1h").compute({}), "the dict of aggregates is empty"),
        (
            lambda: keyed().window("1h").compute({"window_end": agg.Count()}),
            "'window_end', but the aggregate 'window_end' has this name",
        ),
        (
            lambda: flights().key_by("window_start").window("1h").compute(COUNT),
            "have a column 'window_start', but the key column 'window_start' has this name, too; rename the key column",
        ),
        (
            lambda: flights().key_by("revision").window("1h").compute(COUNT, allowed_lateness=1),
            "the key column 'revision' has this name",
        ),
        (lambda: flights().union(keyed().window("1h")), "union takes streams before their key_by"),
    ],
)
def test_window_that_cannot_be_computed_is_refused(build, problem):
    with pytest.raises(TopologyError, match=problem):
        build()


def test_key_may_have_the_name_of_a_revision_without_revisions():
    assert windowing_of(flights().key_by("revision").window("1h").compute(COUNT)).revised is False


def test_inputs_that_differ_in_their_time_need_a_name():
    topology = de.Topology("delays")
    both = flights(topology).union(flights(topology, "others", event_time="until"))
    with pytest.raises(
        TopologyError, match="differ in their columns of event time: 'at' of source 'flights', 'until' of"
    ):
        both.key_by("plane").window("1h")
    assert windowing_of(both.key_by("plane").window("1h", time="at").compute(COUNT)).time == ("at",)


def test_input_without_event_time_is_refused_because_windows_would_not_close():
    topology = de.Topology("delays")
    tags = flights(topology, "tags", event_time=None).map(lambda rows: rows, name="tidy")
    hourly(flights(topology))
    tags.feed(de.topology.Stream(topology, ("hourly",)))
    with pytest.raises(
        TopologyError, match=r"compute 'hourly' has windows, 1h of at, but source 'tags' before it has no"
    ):
        topology.validate()


def test_input_without_event_time_behind_a_compute_is_accepted():
    topology = de.Topology("delays")
    both = flights(topology).union(flights(topology, "tags", event_time=None))
    tagged = both.key_by("plane").compute(lambda rows, state: rows, name="tagged")
    tagged.key_by("plane").window("1h", time="at").compute(COUNT, name="hourly")
    topology.validate()


def test_watermark_that_no_source_advances_is_refused():
    topology = de.Topology("delays")
    tagged = flights(topology, event_time=None).key_by("plane").compute(lambda rows, state: rows, name="tagged")
    tagged.key_by("plane").window("1h", time="at").compute(COUNT, name="hourly")
    with pytest.raises(TopologyError, match="'hourly' has windows, 1h of at, but no source before it has event time"):
        topology.validate()


def test_count_windows_need_no_event_time():
    assert flights(event_time=None).key_by("plane").window(windows.count(2)).windowing.time == ()


def test_late_rows_are_a_stream_once():
    result = hourly(flights(), late="stream", null_time="late")
    result.late.sink(sinks.Collect())
    assert result.late.producers == ("hourly-late",)
    assert [operator.name for operator in result.topology.consumers("hourly")] == ["hourly-late"]
    result.topology.validate()
    assert "hourly-late  map      late rows" in result.topology.describe()


def test_late_rows_have_the_event_time_of_the_input():
    late = hourly(flights(), late="stream").late
    assert windowing_of(late.key_by("plane").window("1d").compute(COUNT)).time == ("at",)


def test_late_rows_that_nothing_reads_are_refused():
    topology = hourly(flights(), late="stream").topology
    with pytest.raises(TopologyError, match="'hourly' sends late rows to a stream that nothing reads; read the stream"):
        topology.validate()


def test_window_over_all_rows_cannot_be_fed():
    topology = de.Topology("delays")
    flights(topology).window("1h").compute(COUNT, name="all")
    with pytest.raises(TopologyError, match="compute 'all' has windows over all rows of its input, which cannot"):
        flights(topology, "others").feed(de.topology.Stream(topology, ("all",)))


def test_some_results_may_be_longer_than_the_window_that_follows():
    both = flights().key_by("plane").window(["10min", "1h"]).compute(COUNT, name="both")
    assert both.key_by("plane").window("30min").windowing.time == ("window_start", "window_end")


def test_window_without_compute_is_refused():
    stream = flights()
    stream.window("1h")
    stream.sink(sinks.Collect())
    with pytest.raises(TopologyError, match=r"window of 'flights' is not used; add .compute"):
        stream.topology.validate()


def test_time_that_is_no_timestamp_is_refused():
    stream = keyed().window("1h", time="delay").compute(COUNT, name="hourly")
    with pytest.raises(
        TopologyError, match="'hourly': column 'delay', the time of its windows, has type int64; cast it"
    ):
        known_inputs(stream.topology)


@pytest.mark.parametrize("late", ["drop", "stream"])
def test_time_that_the_input_lacks_is_refused(late):
    stream = keyed().window("1h", time="landed").compute(COUNT, name="hourly", late=late)
    with pytest.raises(SchemaMismatch, match="operator 'hourly' reads column 'landed', which its input lacks"):
        known_inputs(stream.topology)


def compute_of(logic, given="1h", **options):
    return flights().key_by("plane").window(given).compute(logic, **options)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: compute_of(5), "compute: the logic is 5; give a dict of aggregates such as"),
        (lambda: compute_of(len), "the function len(obj, /) cannot be called as function(rows, instances)"),
        (
            lambda: compute_of(de.per_key(lambda key, rows: None), name="own"),
            "compute 'own': per_key: the function <lambda>(key, rows) cannot be called as function(key, rows, window)",
        ),
        (
            lambda: compute_of(de.per_row(lambda row: None)),
            "compute: per_row: the function <lambda>(row) cannot be called as function(row, state)",
        ),
        (
            lambda: compute_of(de.per_row(lambda row, state: None, output={"window_end": pa.int64()})),
            "results have the column 'window_end' from the key or the window, but output= declares it, too",
        ),
        (
            lambda: flights().key_by("window_start").window("1h").compute(lambda rows, instances: rows),
            "the key column 'window_start' has this name, too; rename the key column",
        ),
        (
            lambda: compute_of(lambda rows, instances: rows, windows.session("1h"), allowed_lateness="1h"),
            "functions of sessions are called once for each; omit allowed_lateness and emit",
        ),
        (
            lambda: compute_of(lambda rows, instances: rows, windows.hopping("1h", "10min"), share=True),
            "share=True shares partial results, but a function without merge= gets the rows",
        ),
        (
            lambda: compute_of(lambda rows, instances: rows, windows.count(5)),
            "functions are of windows over event time, not of ",
        ),
    ],
)
def test_unfit_function_is_named(build, problem):
    with pytest.raises(TopologyError) as raised:
        build()
    assert problem in str(raised.value)


def test_declared_columns_of_a_function_follow_those_of_the_window():
    stream = compute_of(de.per_row(lambda row, state: None, output={"flights": pa.int64()}))
    assert results_schema(stream).names == ["plane", "window_start", "window_end", "flights"]


def test_compute_over_windows_is_named_after_its_function():
    def longest(rows, instances):
        return rows

    assert compute_of(longest).producers == ("longest",)
    assert "windows 1h of at; longest()" in compute_of(longest).topology.describe()
