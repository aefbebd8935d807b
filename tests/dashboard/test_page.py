"""Tests of the page as a browser receives it from a real scheduler, for a history with known values."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch
from urllib.error import HTTPError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from bokeh.client import ClientSession, pull_session
from bokeh.core.property.validation import validate
from bokeh.document import Document
from bokeh.document.models import DocumentModelManager
from bokeh.models import VAreaStep
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from tornado.ioloop import IOLoop

import dask_elastic as de
from dask_elastic import aggregate as agg
from dask_elastic.control.history import SERIES, History, JobHistory
from dask_elastic.dashboard.display import Display
from dask_elastic.dashboard.figures.heat_map import COLUMNS, HeatMap
from dask_elastic.dashboard.figures.time_figure import clock_milliseconds, shared_time_range
from dask_elastic.dashboard.page import ElasticPage, page_document
from dask_elastic.dashboard.prometheus import COLLECTOR
from dask_elastic.dashboard.time_series import TimeSeries
from dask_elastic.vocab.epoch import HandoffProgress
from dask_elastic.vocab.identity import ExecutorId
from dask_elastic.vocab.plan import Outlook, Plan
from dask_elastic.vocab.row_counts import RowCounts
from dask_elastic.vocab.snapshot import ExecutorSnapshot, JobSnapshot, NodeSnapshot, Snapshot
from dask_elastic_plugins.install import install, uninstall

ANSWER_SECONDS = 60.0


class Page:
    """The content of a page.

    Parameters
    ----------
    document : Document
        As a browser has received it, or as the server holds it.
    """

    def __init__(self, document: Document):
        self.document = document

    def model(self, name: str):
        return self.document.get_model_by_name(name)

    def text(self, name: str) -> str:
        return self.model(name).text

    def lines(self, name: str) -> dict[str, list[float]]:
        """Return the values of each line of a figure, by column."""
        drawn = {column(getattr(one.glyph, "y", None)): one.data_source for one in self.model(name).renderers}
        return {name: list(source.data[name]) for name, source in drawn.items() if name in (*SERIES, "moved")}

    def stacked(self, name: str) -> dict[str, list[float]]:
        """Return the height of each area of a stack, by its label in the legend."""
        [figure] = self.model(name).children
        found = {}
        for item in figure.legend[0].items:
            [area] = item.renderers
            assert isinstance(area.glyph, VAreaStep)
            assert area.glyph.step_mode == "after"
            data = area.data_source.data
            low = data.get(column(area.glyph.y1), 0.0)
            found[item.label.value] = list(np.subtract(data[column(area.glyph.y2)], low))
        return found


class Served(Page):
    """The page as the server holds it; values that belong together are read on its event loop, which changes them."""

    def __init__(self, document: Document, cluster: LocalCluster):
        super().__init__(document)
        self._cluster = cluster

    def lines(self, name: str) -> dict[str, list[float]]:
        return self._on_loop(super().lines, name)

    def stacked(self, name: str) -> dict[str, list[float]]:
        return self._on_loop(super().stacked, name)

    def _on_loop(self, read, name: str):
        async def call():
            return read(name)

        return self._cluster.sync(call)


class Browser(Page):
    """A connected browser; it holds the page as first received, or as of the last `look`."""

    def __init__(self, cluster: LocalCluster, path: str, **arguments: str):
        self._url = f"http://127.0.0.1:{cluster.scheduler.http_server.port}/{path}"
        self._session = _pull(self._url, arguments=arguments)
        applications = cluster.scheduler.http_application.applications[0].applications
        self.served = Served(applications[f"/{path}"].get_session(self._session.id).document, cluster)
        super().__init__(self._session.document)

    def look(self) -> None:
        """Receive the current page."""
        # Bokeh's client drops messages while it waits for another one, so pull the same session again.
        again = _pull(self._url, session_id=self._session.id)
        self.document = again.document
        again.close()

    def choose(self, job: str) -> None:
        """Select a job in the field."""
        self._session.document.get_model_by_name("job").value = job
        self._session.force_roundtrip()

    def close(self) -> None:
        self._session.close()


def _pull(url: str, **options) -> ClientSession:
    """Connect to a page; raise OSError if the server does not answer, for which Bokeh's client would wait for ever."""
    loop = IOLoop()
    patience = loop.call_later(ANSWER_SECONDS, loop.stop)
    with _models_found_later():
        session = pull_session(url=url, io_loop=loop, **options)
    session.document.models.recompute()
    loop.remove_timeout(patience)
    return session


@contextmanager
def _models_found_later() -> Iterator[None]:
    """Keep Bokeh's client from finding all models again for each root, twice; the server's documents find theirs."""
    client, recompute = threading.get_ident(), DocumentModelManager.recompute

    def elsewhere(models: DocumentModelManager) -> None:
        if threading.get_ident() != client:
            recompute(models)

    with patch.object(DocumentModelManager, "recompute", elsewhere):
        yield


def column(spec) -> str | None:
    """Return the column of a glyph's property; None if the property is a constant."""
    return spec if isinstance(spec, str) else getattr(spec, "field", None)


@pytest.fixture
def browse(scheduler_host, display):
    opened = []

    def open_page(path: str = "elastic", **arguments: str) -> Browser:
        opened.append(Browser(scheduler_host, path, **arguments))
        return opened[-1]

    yield open_page
    for browser in opened:
        browser.close()


@pytest.fixture
def flights(known):
    """Three snapshots; in the last one, per_route[0] has a core on another node."""
    outlook = {"flights": Outlook(predicted=0.031, starved=2, bound=("per_plane",))}
    for per_route in ({0: 1}, {0: 2}, {0: 2, 1: 1}):
        job = known.job({"per_plane": [{1: 1}, {2: 2}], "per_route": [per_route]})
        decisions = (known.decision(0, observed=0.029),) if len(per_route) == 2 else ()
        known.add(job, outlook=outlook, decisions=decisions)
    return known


@pytest.fixture
def draw(known):
    """Return a function that draws the page of the known cluster without a server."""

    def draw_page() -> Page:
        document = Document()
        page_document(known.view(), {}, document)
        return Page(document)

    return draw_page


# what is drawn


def test_cores_are_stacked_by_executor_and_by_node(flights, browse):
    page = browse()
    assert page.stacked("cores_executor") == {
        "per_plane[0]": [1, 1, 1],
        "per_plane[1]": [2, 2, 2],
        "per_route[0]": [1, 2, 3],
    }
    assert page.stacked("cores_node") == {
        "10.0.0.0:4000": [1, 2, 2],
        "10.0.0.1:4000": [1, 1, 2],
        "10.0.0.2:4000": [2, 2, 2],
    }


def test_lines_show_the_series_of_the_history(flights, browse):
    page = browse()
    assert page.lines("latency") == {
        "latency": [0.02] * 3,
        "latency_p99": [0.08] * 3,
        "predicted": [0.031] * 3,
        "target": [0.05] * 3,
    }
    assert page.lines("throughput") == {"throughput": [700.0] * 3}
    assert page.lines("queue") == {"queue": [28.0, 35.0, 42.0]}
    assert page.lines("state") == {"state_bytes": [4096.0, 5120.0, 6144.0]}
    assert page.lines("moves") == {"moved": [0.0, 11.0, 11.0]}


def test_figures_share_time_range_in_local_time_of_scheduler(flights, draw):
    page = draw()
    source = page.model("latency").renderers[0].data_source
    np.testing.assert_allclose(source.data["time"], clock_milliseconds(np.array(flights.history.job("flights").times)))
    [cores] = page.model("cores_executor").children
    assert cores.x_range is page.model("latency").x_range is page.model("queue").x_range


def test_headline_shows_newest_values(flights, draw):
    text = draw().text("headline")
    for expected in ("6", "3 executors, 3 nodes", "700/s", "rows that sources read", "20 ms", "within 50 ms", "80 ms"):
        assert f">{expected}<" in text, expected
    for expected in ("31 ms", "42", "6 KiB", "66", "at the present homes"):
        assert f">{expected}<" in text, expected


def test_headline_has_notices_for_gil_bound_and_starved(flights, draw):
    text = draw().text("headline")
    assert "per_plane is GIL-bound" in text
    assert "per_route is GIL-bound" not in text
    assert "Starved: 2 cores missing" in text


def test_headline_shows_missed_target_and_infinite_prediction(known, draw):
    known.add(known.job({"a": [{0: 1}]}, latency=0.2), outlook={"flights": Outlook(predicted=float("inf"))})
    page = draw()
    assert "above 50 ms" in page.text("headline")
    assert "queues grow" in page.text("headline")
    assert np.isnan(page.lines("latency")["predicted"]).all()


@pytest.mark.parametrize(
    ("options", "notice"),
    [
        ({"dry_run": True}, "Dry run"),
        ({"paradigm": "static"}, "Paradigm static"),
        ({"latency_target": None}, "No latency target"),
    ],
)
def test_headline_has_notices_for_modes(known, draw, options, notice):
    known.add(known.job({"a": [{0: 1}]}, **options))
    assert notice in draw().text("headline")


def test_headline_has_notices_for_problems(known, draw):
    known.add(known.job({"a": [{0: 1}]}), decisions=(known.decision(0, feasible=False),))
    known.cards["flights"] = replace(known.cards["flights"], oversubscribed=True)
    known.problem = "ValueError: no way"
    text = draw().text("headline")
    assert "Oversubscribed" in text
    assert "No allocation of the available cores reaches the target of 50 ms" in text
    assert "The control loop has failed" in text


def test_decisions_table_shows_changes_reason_and_latencies(flights, draw):
    page = draw()
    text = page.text("decisions")
    assert "per_route[0]: 2 → 3 cores, now on 2 nodes" in text
    assert "2 KiB of state move to another node" in text
    assert "per_route[0] is behind" in text
    assert [f">{number}<" in text for number in ("110 ms", "50 ms", "31 ms", "29 ms")] == [True] * 4
    assert "not carried out" not in text
    [marks] = [one.data_source for one in page.model("latency").renderers if "alpha" in one.data_source.data]
    assert list(marks.data["time"]) == list(clock_milliseconds(np.array([flights.decided[0].time])))


def test_headline_shows_newest_decision(known, draw):
    known.add(known.job({"a": [{0: 1}]}), decisions=(known.decision(0), known.decision(1, changes=())))
    assert "</b> per_route[0] is behind</p>" in draw().text("headline")
    known.add(known.job({"a": [{0: 1}]}), decisions=(known.decision(2),))
    assert "</b> per_route[0]: 2 → 3 cores, now on 2 nodes · per_route[0] is" in draw().text("headline")


def test_decision_not_applied_has_no_mark(known, draw):
    known.add(known.job({"a": [{0: 1}]}), decisions=(known.decision(0, applied=False),))
    page = draw()
    assert "not carried out" in page.text("decisions")
    [marks] = [one.data_source for one in page.model("latency").renderers if "alpha" in one.data_source.data]
    assert len(marks.data["time"]) == 0


def test_operators_table_sums_over_executors(flights, draw):
    text = draw().text("operators")
    plane, route = text.split("<tr>")[2:]
    assert "per_plane" in plane
    assert "GIL-bound" in plane
    assert "GIL-bound" not in route
    cells = [cell.split("</td>")[0] for cell in plane.split('<td class="number">')[1:]]
    assert cells == ["2", "3", "1,800/s", "1,500/s", "60%", "21", "4 ms", "3 KiB", "33", "–"]


def test_operators_table_shows_event_time_of_jobs_that_have_it(known, draw):
    job = known.job({"hourly": [{0: 1}, {1: 1}], "daily": [{0: 1}], "plain": [{0: 1}]})
    hour = 3_600_000_000
    own = [
        {"event_time": 5 * hour, "windows": RowCounts(on_time=20_000, late=3, outside=2), "open_windows": 40},
        {"event_time": 4 * hour, "windows": RowCounts(on_time=100, corrected=1, late=4), "open_windows": 2},
        {"windows": RowCounts()},
        {"event_time": 6 * hour},
    ]
    executors = tuple(replace(executor, **each) for executor, each in zip(job.executors, own, strict=True))
    known.add(replace(job, executors=executors, event_time=5 * hour))
    head, hourly, daily, plain = draw().text("operators").split("<tr>")[1:]
    assert head.count("<th") == 15
    none = '<span title="0 on time, 0 corrected, 0 late, 0 outside, 0 untimed">0</span>'
    cells = [[cell.removeprefix('<td class="number">') for cell in row.split("</td>")[-5:-1]] for row in (daily, plain)]
    assert cells == [["–", "–", "–", none], ["1970-01-01 06:00:00", "0 s", "–", "–"]]
    assert ">1970-01-01 04:00:00<" in hourly
    assert ">42<" in hourly
    assert "3,600 s" in hourly
    assert 'title="20.1 k on time, 1 corrected, 7 late, 2 outside, 0 untimed">7<' in hourly


def test_handoffs_table_shows_progress_of_spark_handoff(flights, browse, wait_until):
    page = browse()
    assert not page.model("handoffs").visible
    progress = HandoffProgress(
        "<arrived>", 16, 17, 1_234_567, 12_300.0, waiting=1, limit=2, staged=12_900_000, spilled=512
    )
    flights.cards["flights"] = replace(flights.cards["flights"], handoffs=lambda: [progress])
    wait_until(lambda: page.served.model("handoffs").visible, "the handoff")
    page.look()
    text = page.text("handoffs")
    cells = [cell.split("</td>")[0] for cell in text.split('<td class="number">')[1:]]
    assert cells == ["16", "17", "1.23 M", "12.3 k/s", "1 of 2", "12.3 MiB", "512 B"]
    assert "&lt;arrived&gt;" in text
    assert "queue is full" not in text


def test_handoffs_table_marks_full_queue_of_running_job(flights, draw):
    full = HandoffProgress("arrived", 16, 17, 10, 0.0, waiting=2, limit=2)
    flights.cards["flights"] = replace(flights.cards["flights"], handoffs=lambda: [full])
    assert "queue is full" in draw().text("handoffs")
    flights.cards["flights"] = replace(flights.cards["flights"], status="finished")
    assert "queue is full" not in draw().text("handoffs")


def test_names_and_reasons_are_escaped(known, draw):
    known.add(known.job({"<i>a": [{0: 1}]}), decisions=(known.decision(0, reason="<script>"),))
    known.cards["flights"] = replace(known.cards["flights"], status="failed", error="<b>bold</b>")
    page = draw()
    for name in ("headline", "operators", "decisions"):
        assert not {"<script>", "<i>", "<b>bold"} & set(page.text(name).split(">")), name
        assert "<script>" not in page.text(name)
        assert "<i>a" not in page.text(name)
        assert "<b>bold" not in page.text(name)
    assert "&lt;script&gt;" in page.text("decisions")


# sizes


def test_cores_of_many_executors_are_a_heat_map(known, browse):
    known.nodes = 32
    counts = np.random.default_rng(5).integers(1, 9, (4, 200))
    for row in counts:
        known.add(known.job({"by_stock": [{index % 32: int(count)} for index, count in enumerate(row)]}))
    page = browse()
    [figure] = page.model("cores_executor").children
    assert "200 executors" in figure.title.text
    assert not figure.legend
    [image] = [one.data_source.data for one in figure.renderers if "image" in one.data_source.data]
    np.testing.assert_array_equal(np.asarray(image["image"][0])[:, :4], counts.T)
    assert not np.asarray(image["image"][0])[:, 4:].any()
    assert len(figure.yaxis[0].ticker.ticks) <= 14
    [nodes] = page.model("cores_node").children
    assert "32 nodes" in nodes.title.text


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_heat_map_shows_the_cores_of_every_row(data):
    gaps = data.draw(st.lists(st.integers(1, 400), min_size=2, max_size=14))
    times = 1000.0 * np.cumsum([0, 1, *gaps])
    cores = np.random.default_rng(len(gaps)).integers(0, 9, (len(times), 3)).astype(float)
    first = data.draw(st.integers(2, len(times)))
    shown = HeatMap("abc", times[:2], cores[:2], "title", shared_time_range())
    shown.extend(times[2:first], cores[2:first]) if first > 2 else None
    for row in range(first, len(times)):
        shown.extend(times[row : row + 1], cores[row : row + 1])
    picture = shown.source.data
    image, left = picture["image"][0], picture["left"][0]
    for moment, line in zip(times, cores, strict=True):
        column = round((moment - left) / 1000)
        if 0 <= column < COLUMNS:
            np.testing.assert_array_equal(image[:, column], line)
    assert round((times[-1] - left) / 1000) in range(COLUMNS)
    assert (times[-1] - left) / 1000 >= min(599, times[-1] / 1000)


@pytest.mark.parametrize("seconds", [1, 5])
def test_heat_map_shows_the_newest_rows_of_a_job_that_became_idle(seconds):
    times = np.concatenate([np.arange(320.0), 320 + seconds * np.arange(1.0, 281)])
    cores = np.where(times[:, None] < 320, [[1.0, 2.0]], [[3.0, 0.0]])
    shown = HeatMap("ab", 1000.0 * times, cores, "title", shared_time_range())
    data = shown.source.data
    image, left = data["image"][0], data["left"][0] / 1000
    newest = round(times[-1] - left)
    assert newest in range(599, COLUMNS)
    begins = max(0, round(times[320] - left))
    assert (image[:, begins : newest + 1] == [[3], [0]]).all()
    assert (image[:, :begins] == [[1], [2]]).all()
    assert not image[:, newest + 1 :].any()


def test_heat_map_repeats_the_row_before_a_long_gap():
    shown = HeatMap("ab", 1000.0 * np.arange(600), np.full((600, 2), 1.0), "title", shared_time_range())
    # A viewer comes back: the last row that was drawn, and the first ones after it, are older than the image.
    shown.extend(1000.0 * np.array([1000.0, 1500.0, 2000.0]), np.array([[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]))
    image = shown.source.data["image"][0]
    assert image[0].tolist() == [2] * 99 + [3] * 500 + [4] + [0] * (COLUMNS - 600)


# time passes


def test_update_sends_only_new_rows(flights, display, browse, wait_until, call_on_loop, scheduler_host):
    page = browse()
    sent = []
    call_on_loop(scheduler_host, page.served.document.on_change, sent.append)
    flights.add(flights.job({"per_plane": [{1: 1}, {2: 2}], "per_route": [{0: 4}]}, latency=0.5))
    wait_until(lambda: len(page.served.lines("queue")["queue"]) == 4, "the new row")
    page.look()
    assert page.lines("latency")["latency"] == [0.02, 0.02, 0.02, 0.5]
    assert page.stacked("cores_executor")["per_route[0]"] == [1, 2, 3, 4]
    assert "500 ms" in page.text("headline")
    streamed = [event for event in sent if event.kind == "ColumnsStreamed"]
    assert [len(event.data["time"]) for event in streamed] == [1, 1, 1]
    assert {event.attr for event in sent if event.kind == "ModelChanged"} == {"text"}


def test_new_node_is_drawn(flights, browse, wait_until):
    page = browse()
    flights.nodes = 4
    flights.add(flights.job({"per_plane": [{1: 1}, {2: 2}], "per_route": [{0: 2, 3: 1}]}))
    wait_until(lambda: "10.0.0.3:4000" in page.served.stacked("cores_node"), "the new node")
    page.look()
    assert page.stacked("cores_node")["10.0.0.3:4000"] == [0, 0, 0, 1]


def test_new_generation_of_job_is_drawn_from_its_beginning(flights, browse, wait_until):
    page = browse()
    flights.add(flights.job({"per_plane": [{0: 5}]}, generation=2))
    wait_until(lambda: page.served.stacked("cores_executor") == {"per_plane[0]": [5]}, "the new generation")
    page.look()
    assert page.lines("queue") == {"queue": [35.0]}
    assert "None yet" in page.text("decisions")


def test_page_shows_first_job_when_it_is_submitted(known, browse, wait_until):
    page = browse()
    assert page.model("welcome").visible
    assert "de.submit(topology, client" in page.text("welcome")
    assert not page.model("latency").visible
    known.add(known.job({"per_plane": [{0: 1}]}))
    wait_until(lambda: page.served.model("latency").visible, "the figures")
    page.look()
    assert not page.model("welcome").visible
    assert page.model("job").value == "flights"


def test_page_shows_error_of_job_that_was_never_measured(known, draw):
    known.add(known.job({"a": [{0: 1}]}))
    known.history.forget("flights")
    known.cards["flights"] = replace(known.cards["flights"], status="failed", error="KeyError: 'x'")
    page = draw()
    assert "The job failed: KeyError" in page.text("headline")
    assert "ended before it was measured" in page.text("headline")
    assert not page.model("latency").visible


def test_page_still_shows_ended_job(flights, draw):
    flights.cards["flights"] = replace(flights.cards["flights"], status="finished")
    page = draw()
    assert page.model("job").options == [("flights", "flights (finished)")]
    assert "Cores at the end" in page.text("headline")
    assert "Starved" not in page.text("headline")
    assert page.stacked("cores_executor")["per_route[0]"] == [1, 2, 3]


def test_page_shows_the_selected_job(flights, browse, wait_until):
    flights.add(flights.job({"per_word": [{0: 3}]}, name="words"), outlook={"words": Outlook(starved=1)})
    page = browse()
    assert page.model("job").value == "words"
    assert page.model("job").options == [
        ["words", "words (running, starved)"],
        ["flights", "flights (running, starved)"],
    ]
    page.choose("flights")
    wait_until(lambda: "per_route[0]" in page.served.stacked("cores_executor"), "the other job")
    page.look()
    assert "per_plane is GIL-bound" in page.text("headline")
    flights.cards["words"] = replace(flights.cards["words"], status="finished")
    assert "per_route[0]" in browse(job="flights").stacked("cores_executor")


def test_viewers_share_one_read_of_the_history(flights, monkeypatch):
    calls = []
    original = JobHistory.cores_by_node
    monkeypatch.setattr(JobHistory, "cores_by_node", lambda job, last: calls.append(job) or original(job, last))
    view, shown = flights.view(), flights.history.job("flights")
    pages = [ElasticPage(view) for _ in range(5)]
    # Pages of earlier tests may still be updated.
    assert sum(job is shown for job in calls) == 1
    flights.add(flights.job({"per_plane": [{1: 1}, {2: 2}], "per_route": [{0: 4}]}))
    for page in pages:
        page.update()
    assert sum(job is shown for job in calls) == 2


def test_page_of_disconnected_viewer_is_not_updated(flights, display, browse, wait_until, call_on_loop, scheduler_host):
    page = browse()
    [callback] = page.served.document.session_callbacks
    asked = flights.asked
    call_on_loop(scheduler_host, callback.callback)
    assert flights.asked > asked
    page.close()
    session = page.served.document.session_context.session
    wait_until(lambda: session.connection_count == 0, "the viewer has disconnected")
    asked = flights.asked
    call_on_loop(scheduler_host, callback.callback)
    assert flights.asked == asked


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12), kept=st.integers(2, 20))
@settings(max_examples=40, deadline=None)
def test_time_series_has_newest_rows_of_history(lengths, kept):
    history, series = History(length=25), TimeSeries(kept)
    node, moment, seen = NodeSnapshot("tcp://a:1", "a", 99), 0, 0
    for length in lengths:
        for _ in range(length):
            moment += 1
            one = ExecutorSnapshot(ExecutorId("a", 0), 0, {0: moment}, 1.0, None, queue=2 * moment, moves=moment**2)
            history.add(Snapshot(float(moment), (node,), (JobSnapshot("job", 1, (one,)),)), Plan())
        series.update(history.job("job"))
        rows = series.since(seen)
        expected = range(moment + 1 - min(length, kept, 25), moment + 1)
        assert list(rows.times) == list(expected)
        assert list(rows.executors[:, 0]) == list(rows.nodes[:, 0]) == list(expected)
        assert list(rows.series["queue"]) == [2 * at for at in expected]
        assert list(rows.series["moved"][1:]) == [at**2 - (at - 1) ** 2 for at in expected][1:]
        seen = series.end


def test_time_series_begins_anew_with_times_that_come_again():
    history, series, node = History(), TimeSeries(), NodeSnapshot("tcp://a:1", "a", 2)
    one = ExecutorSnapshot(ExecutorId("a", 0), 0, {0: 1}, 1.0, None)
    for moment in (100.0, 101.0, 102.0, 40.0, 41.0):
        history.add(Snapshot(moment, (node,), (JobSnapshot("job", 1, (one,)),)), Plan())
        series.update(history.job("job"))
    assert (series.layout_version, series.end) == (2, 2)
    assert list(series.since(0).times) == [40.0, 41.0]


# in Dask's dashboard


def test_navigation_of_all_pages_links_the_page(display, get, address):
    for path in ("status", "elastic"):
        text = get(f"{address}/{path}")
        assert '<a href="elastic">Elastic</a>' in text, path
        assert '<a href="individual-elastic-cores">Elastic Cores</a>' in text, path
        assert '<a href="elastic#task-stream">Elastic: Why Is the Task Stream Empty?</a>' in text, path
    assert 'id="task-stream"' in text


def test_panels_are_listed_for_jupyterlab(display, get, address):
    plots = json.loads(get(f"{address}/individual-plots.json"))
    assert plots["Individual Elastic Latency"] == "/individual-elastic-latency"
    assert plots["Individual Elastic Throughput"] == "/individual-elastic-throughput"
    assert plots["Individual Elastic Cores"] == "/individual-elastic-cores"
    assert plots["Individual Task Stream"] == "/individual-task-stream"


def test_panel_shows_newest_job(flights, browse):
    assert browse("individual-elastic-cores").stacked("cores_executor")["per_route[0]"] == [1, 2, 3]
    assert browse("individual-elastic-latency").lines("latency")["latency"] == [0.02] * 3
    throughput = browse("individual-elastic-throughput")
    assert throughput.lines("throughput")["throughput"] == [700.0] * 3
    assert "Job flights (running)" in throughput.text("caption")
    assert throughput.model("throughput").sizing_mode == "stretch_both"


def test_panel_shows_first_job_when_it_is_submitted(known, browse, wait_until):
    panel = browse("individual-elastic-cores")
    assert "No job" in panel.text("caption")
    known.add(known.job({"a": [{0: 2}]}))
    wait_until(lambda: panel.served.text("caption") == "Job flights (running)", "the job")
    panel.look()
    assert panel.stacked("cores_executor") == {"a[0]": [2]}


def test_page_is_drawn_while_pages_of_another_scheduler_switch_validation_off(flights, draw):
    with validate(False):
        page = draw()
    assert page.model("latency").title.text == "Latency, end to end"
    assert page.model("latency").visible


def test_error_while_a_page_is_drawn_is_shown(flights, browse, caplog):
    known = flights.cards["flights"]
    flights.cards["flights"] = replace(known, flow=lambda: 1 / 0)
    assert "This page cannot be drawn: ZeroDivisionError: " in browse().text("error")
    assert "The page /elastic cannot be drawn" in caplog.text
    flights.cards["flights"] = known
    assert browse().model("latency").visible


def test_pages_are_removed_when_display_closes(flights, display, browse, get, address, call_on_loop, scheduler_host):
    page = browse()
    assert page.model("latency").visible
    call_on_loop(scheduler_host, display.close)
    for path in ("elastic", "individual-elastic-cores"):
        with pytest.raises(HTTPError, match="404"):
            get(f"{address}/{path}")
    assert "lastic" not in get(f"{address}/status")
    assert "lastic" not in get(f"{address}/individual-plots.json")
    call_on_loop(scheduler_host, display.open)
    assert "elastic" in get(f"{address}/status")


@pytest.mark.parametrize("module", ["dask_elastic.dashboard.pages", "dask_elastic.dashboard.prometheus"])
def test_display_without_library_opens_the_rest(known, module, monkeypatch, caplog, call_on_loop, scheduler_host):
    monkeypatch.setitem(sys.modules, module, None)
    display = Display(scheduler_host.scheduler, known.view())
    with caplog.at_level(logging.INFO, logger="dask_elastic.scheduler"):
        call_on_loop(scheduler_host, display.open)
    call_on_loop(scheduler_host, display.close)
    assert module in caplog.text


def test_scheduler_without_dashboard_has_no_page(known, call_on_loop):
    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster:
        display = Display(cluster.scheduler, known.view())
        call_on_loop(cluster, display.open)
        assert cluster.scheduler.http_application.applications == []
        call_on_loop(cluster, display.close)


def test_display_with_incompatible_dashboard_opens_the_rest(known, monkeypatch, caplog, call_on_loop, scheduler_host):
    monkeypatch.setattr("dask_elastic.dashboard.pages.create_hosts_allowlist", None)
    display = Display(scheduler_host.scheduler, known.view())
    call_on_loop(scheduler_host, display.open)
    assert "serves no page of elastic jobs" in caplog.text
    monkeypatch.undo()
    call_on_loop(scheduler_host, display.close)


def test_pages_use_the_prefix_of_the_dashboard(known, get, call_on_loop):
    options = {"n_workers": 0, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**options, scheduler_kwargs={"http_prefix": "/clusters/a"}) as cluster:
        display = Display(cluster.scheduler, known.view())
        call_on_loop(cluster, display.open)
        address = f"http://127.0.0.1:{cluster.scheduler.http_server.port}/clusters/a"
        assert '<a href="elastic">' in get(f"{address}/elastic")
        assert "dask_elastic_jobs" in get(f"{address}/metrics")
        call_on_loop(cluster, display.close)


# with the engine


def raise_on_negative(batch):
    """Pass on all rows, but raise on the key -1."""
    if pc.any(pc.less(batch["key"], 0)).as_py():
        raise ValueError("a negative key")
    return pa.array([True] * batch.num_rows)


def slowly(batch):
    """Process 2,000 rows per second."""
    time.sleep(batch.num_rows / 2_000)
    return batch


def test_page_shows_real_job_until_uninstall(get, wait_until):
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        address = f"http://127.0.0.1:{cluster.scheduler.http_server.port}"
        with Client(cluster) as client:
            install(client)
            topology = de.Topology("counting")
            table = pa.table({"key": [-1, *range(400_000)]})
            rows = topology.source("rows", de.sources.Arrow(table, rate=20_000))
            valid = rows.filter(raise_on_negative, name="valid")
            counted = valid.key_by("key").compute({"count": agg.Count()}, name="per_key", executors=1)
            counted.map(slowly, name="slowly").sink(de.sinks.Call(len), name="out")
            job = de.submit(topology, client, on_error="skip")
            page = Browser(cluster, "elastic")
            wait_until(lambda: page.served.model("latency").visible, "the job was measured")
            wait_until(lambda: "counting (running" in str(page.served.model("job").options), "it runs")
            page.look()
            assert list(page.stacked("cores_executor")) == ["per_key[0]"]
            text = page.served.text
            wait_until(
                lambda: re.search(">backpressured (100|[5-9][0-9])%<", text("graph")), "the source waits for credit"
            )
            wait_until(lambda: ">bottleneck<" in text("graph"), "the slow operator is named")
            # There is no lag before the first report.
            wait_until(lambda: any(lag > 0.5 for lag in page.served.lines("lag")["lag"]), "the source lags")
            wait_until(lambda: "Backpressure: rows waits for per_key" in text("headline"), "the notice")
            wait_until(lambda: ">1 dead<" in text("graph"), "the dead letter in the graph")
            wait_until(lambda: ">dead letters</span>" in text("overview"), "the dead letter in the overview")

            def edges():
                return re.findall("<title>([^<]*) → ([^<]*): ([^,<]*)", text("graph"))

            assert [edge[:2] for edge in edges()] == [
                ("rows", "valid"), ("valid", "per_key"), ("per_key", "slowly"), ("slowly", "out"),
            ]  # fmt: skip
            wait_until(lambda: "0/s" not in [rate for _, _, rate in edges()], "rows pass over all edges")
            assert re.search(r'dask_elastic_jobs\{[^}]*status="running"\} 1\.0', get(f"{address}/metrics"))
            job.stop()
            wait_until(lambda: page.served.model("job").options == [("counting", "counting (stopped)")], "the end")
            page.close()
            uninstall(client)
            with pytest.raises(HTTPError, match="404"):
                get(f"{address}/elastic")
            # This process may still have schedulers of other tests.
            assert cluster.scheduler.address not in COLLECTOR._view
