"""Passwords in the URLs of folders appear in no error, log, command or repr."""

from __future__ import annotations

import traceback
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dask_elastic as de
from dask_elastic.checkpoint.catalog import Catalog
from dask_elastic.checkpoint.file_ref import FileRef
from dask_elastic.checkpoint.folder import CheckpointFolder
from dask_elastic.connectors.sinks.parquet import _Directory
from dask_elastic.connectors.sinks.rolling_files import RollingFiles
from dask_elastic.runtime.scheduler.job_checkpoints import JobCheckpoints
from dask_elastic.vocab.errors import ElasticError
from dask_elastic.vocab.text.shown_error import ShownError, shown_error
from dask_elastic.vocab.text.shown_url import shown_url

URL = "memory://user:s:ecret@host/checkpoints"
SHOWN = "memory://user:***@host/checkpoints"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, SHOWN),
        ("simplecache::sftp://user:s@cret@host:22/a/b@c:d", "simplecache::sftp://user:***@host:22/a/b@c:d"),
        ("no way to ftp://u:secret@a/x or ftp://u:secret@b/y", "no way to ftp://u:***@a/x or ftp://u:***@b/y"),
        ("postgresql://:secret@host/db", "postgresql://:***@host/db"),
        ("postgresql://host/db?user=u&password=s%40 x", "postgresql://host/db?user=u&password=*** x"),
        ("host=h password=secret user=u", "host=h password=*** user=u"),
        ("https://host/a?sv=1&sig=secret&se=2#b", "https://host/a?sv=1&sig=***&se=2#b"),
        ("sftp://user:se'c\"ret@host/a", "sftp://user:***@host/a"),
        ("sftp://user:p%40w@[fe80::1]:22/a", "sftp://user:***@[fe80::1]:22/a"),
        ("s3://KEY:se/cr/et@bucket/a", "s3://KEY:***@bucket/a"),
        ("https://ghp_secret@host/a", "https://***@host/a"),
        ("see git+https://ghp_secret@host:80/a?b", "see git+https://***@host:80/a?b"),
        ("https://host?x=a@b and https://host/a@b", "https://host?x=a@b and https://host/a@b"),
        ("https://h:80?x=a@b", "https://h:80?x=a@b"),
        ("https://h:80#a@b, https://h?a=b:c@d", "https://h:80#a@b, https://h?a=b:c@d"),
        ("sftp://user:se cr et@host/a@b", "sftp://user:***@host/a@b"),
        ("no way to sftp://user:12ab c@host/a, or b@c", "no way to sftp://user:***@host/a, or b@c"),
        ("sftp://user:12 34@host/a", "sftp://user:***@host/a"),
        ("simplecache::sftp://user:it's se/c ret@host/a", "simplecache::sftp://user:***@host/a"),
        ("no way to sftp://user:it's se cret@host/a: b@c", "no way to sftp://user:***@host/a: b@c"),
        ("no way to 'sftp://user:\"se cr'et@host/a'", "no way to 'sftp://user:***@host/a'"),
        ("sftp://user:it's se cret@host is down, ask a@b", "sftp://user:***@host is down, ask a@b"),
        ("sftp://user:12 34@host", "sftp://user:***@host"),
        ("no way to tcp://host:8786 or a@b", "no way to tcp://host:8786 or a@b"),
        ("tcp://host:8786 has left, ask a@b", "tcp://host:8786 has left, ask a@b"),
        ("tls://host:8786: refused by a@b", "tls://host:8786: refused by a@b"),
        ("https://host:443 is down, ask a@b", "https://host:443 is down, ask a@b"),
        ("postgresql://host:5432: refused, ask a@b", "postgresql://host:5432: refused, ask a@b"),
        ("postgresql://host:5432 is down, ask a@b or c", "postgresql://host:5432 is down, ask a@b or c"),
        ("tcp://host:8786' or 'a@b'", "tcp://host:8786' or 'a@b'"),
        ("'tcp://host:8786' or 'a@b'", "'tcp://host:8786' or 'a@b'"),
        ("no way to tcp://host:8786: a@b", "no way to tcp://host:8786: a@b"),
        ("host=h password='se cret' user=u", "host=h password=*** user=u"),
        (r"host=h password='it\'s se cret'", "host=h password=***"),
        ("password = 'se cret' user=u", "password = *** user=u"),
        ("host=h password = secret user=u", "host=h password = *** user=u"),
        (repr("a password='se cret' \""), r"""'a password=*** "'"""),
        ("'https://host/a?token=' and 'b'", "'https://host/a?token=' and 'b'"),
        ("zip://a.zip::https://u:secret@host/a", "zip://a.zip::https://u:***@host/a"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("['http://host:80','a@b']", "['http://host:80','a@b']"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("github://owner:repository@main/a.parquet", "github://owner:repository@main/a.parquet"),
        ("C:\\data\\a:b@c", "C:\\data\\a:b@c"),
        ("/data/token=a/b@c", "/data/token=a/b@c"),
        ("sftp://user@host:22/a", "sftp://user@host:22/a"),
        ("http://host:80/a:b@c", "http://host:80/a:b@c"),
        ("/data/a:b@c", "/data/a:b@c"),
    ],
)
def test_only_passwords_are_hidden(url, shown):
    assert shown_url(url) == shown


TEXTS = st.text("ab :,'\".", max_size=12)
"""What messages have beside URLs."""

PASSWORDS = st.text("xyz01 '\"%:;,.-_!", min_size=1, max_size=12).map("Q".__add__)
"""With a letter first: digits could be a port."""


@given(before=TEXTS, password=PASSWORDS, host=st.sampled_from(["host", "host:22", "[::1]:22"]), after=TEXTS)
@example(before="", password="Q' 0", host="host", after=" a")
def test_password_is_hidden_anywhere_in_a_text_which_else_stays(before, password, host, after):
    text = f"{before} sftp://user:{{}}@{host}/a{after} b@c"
    assert shown_url(text.format(password)) == text.format("***")


@given(
    scheme=st.sampled_from(["tcp", "tls", "ws", "http", "https"]),
    before=st.sampled_from(["", "'", "no way to "]),
    separator=st.sampled_from([" ", ": ", ", ", "; ", ". ", ") ", "' ", "/ "]),
    text=TEXTS,
)
def test_text_behind_an_address_stays(scheme, before, separator, text):
    told = f"{before}{scheme}://host:8786{separator}{text} a@b"
    assert shown_url(told) == told


@given(st.text("aQ0:/@ '\"?=,", max_size=30), st.sampled_from(["", "see "]))
def test_text_that_is_shown_has_nothing_more_to_hide(rest, before):
    shown = shown_url(f"{before}sftp://user:{rest}")
    assert shown_url(shown) == shown


def traced(raised):
    """What a program prints that ends by an error: the text of its causes, too."""
    return "".join(traceback.format_exception(raised.value))


class Refusal(Exception):
    """What the library of a storage raises, with the URL."""


def test_folders_and_their_errors_hide_the_password(monkeypatch, caplog):
    folder = CheckpointFolder(URL)
    assert folder.url == URL
    assert repr(folder) == f"CheckpointFolder({SHOWN!r})"
    assert folder.where("state/1") == f"{SHOWN}/state/1"

    def refuse(*arguments):
        raise Refusal(f"cannot connect to {URL}")

    with pytest.raises(ElasticError, match="no complete checkpoint") as missing:
        Catalog(folder).load()
    monkeypatch.setattr(folder, "_files", type("Files", (), dict.fromkeys(("write", "read", "sizes"), refuse))())
    with pytest.raises(ElasticError, match="Refusal") as refused:
        folder.write("state/1/rows.arrows", [b"rows"])
    for text in (traced(missing), traced(refused), caplog.text):
        assert "ecret" not in text
    assert f"Refusal: cannot connect to {SHOWN}" in traced(refused)


def test_unknown_protocol_is_refused_without_the_password():
    with pytest.raises(ElasticError) as refused:
        CheckpointFolder("nonsense://user:secret@host/checkpoints")
    assert "nonsense://user:***@host/checkpoints" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", [SHOWN, "https://***@host/a", "https://host/a?sig=***"])
def test_url_that_was_shown_to_people_is_refused_with_the_reason(url):
    with pytest.raises(ElasticError, match=r"stands for a password.*Give the URL with the password"):
        CheckpointFolder(url)


@pytest.mark.parametrize("url", ["memory://host/***", "memory://user:s***@host/a", "/data/***/a:***@b"])
def test_url_with_stars_elsewhere_is_a_folder(url):
    assert CheckpointFolder(url).url == url


def test_descriptions_of_checkpoints_hide_the_password():
    assert JobCheckpoints(URL, FileRef("topology", 0, "", 0)).status(0.0).url == SHOWN


@pytest.mark.parametrize(
    "connector", [de.sinks.Parquet(URL), de.sinks.Delta(URL), de.sources.Parquet(URL), de.sources.Parquet([URL, URL])]
)
def test_connectors_hide_the_password(connector):
    assert "ecret" not in repr(connector)
    assert SHOWN in repr(connector)


def refuse(*arguments, **options):
    """What the library of a storage does, which names the URL."""
    raise OSError(f"cannot connect to {URL}")


@pytest.mark.parametrize(
    "use",
    [
        lambda broken: list(de.sources.Parquet(URL).read(SimpleNamespace(agreed=None))),
        lambda broken: list(_Directory(broken, f"{URL}/", "sink 'out'").show(["a"])),
        lambda broken: list(_Directory(broken, f"{URL}/", "sink 'out'").show_prepared(["a"])),
        lambda broken: RollingFiles(broken, lambda number: f"{URL}/{number}", 1, "none", "sink 'out'", None).write(
            pa.record_batch({"n": [1]})
        ),
    ],
)
def test_errors_of_sources_and_sinks_hide_the_password(use, monkeypatch):
    broken = SimpleNamespace(**dict.fromkeys(("get_file_info", "move", "create_dir", "open_output_stream"), refuse))
    monkeypatch.setattr("dask_elastic.connectors.sources.parquet.find_files", refuse)
    with pytest.raises(ElasticError) as refused:
        use(broken)
    assert "ecret" not in traced(refused)
    assert SHOWN in str(refused.value)
    assert f"OSError: cannot connect to {SHOWN}" in traced(refused)


def raised_by(raising):
    """The error that a function raises."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        raising()
    return raised.value


def after(first, second, explicit):
    """Raise an error while another one is handled."""
    try:
        raise first
    except Exception as error:
        raise second from (error if explicit else None)


def while_handled(first, second):
    """Raise an error while another one is handled, which becomes its context."""
    try:
        raise first
    finally:
        raise second


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (raised_by(lambda: after(OSError(URL), ValueError("cannot be reached"), explicit=True)), True),
        (raised_by(lambda: while_handled(OSError(URL), ValueError("cannot be reached"))), True),
        (raised_by(lambda: after(OSError(URL), ValueError("cannot be reached"), explicit=False)), False),
        (ExceptionGroup("two hosts", [OSError(URL), OSError("no route")]), True),
        (ValueError("cannot be reached"), False),
    ],
)
def test_error_from_which_another_is_raised_hides_the_passwords_of_all_that_its_traceback_shows(error, shown):
    cause = shown_error(error)
    text = "".join(traceback.format_exception(cause))
    assert "ecret" not in text
    assert isinstance(cause, ShownError) is shown
    if not shown:
        assert cause is error
        return
    assert SHOWN in text
    assert f"{type(error).__name__}: {error.args[0]}" in text
    # The lines that raised them stay.
    before = traceback.format_exception(error)
    assert [line for line in before if line.startswith("  File")] == [
        line for line in traceback.format_exception(cause) if line.startswith("  File")
    ]


def test_errors_that_lead_to_each_other_are_shown_once():
    first, second = OSError(URL), ValueError("cannot be reached")
    first.__context__, second.__context__ = second, first
    text = "".join(traceback.format_exception(shown_error(first)))
    assert text.count(SHOWN) == 1
    assert "ecret" not in text


def test_cause_of_an_error_in_a_group_hides_the_password():
    of_group = raised_by(lambda: after(OSError(URL), ValueError("cannot be reached"), explicit=True))
    group = ExceptionGroup("two hosts", [of_group, OSError("no route")])
    # An error may lead to the group again.
    of_group.__cause__.__context__ = group
    text = "".join(traceback.format_exception(shown_error(group)))
    assert "ecret" not in text
    for line in ("ExceptionGroup: two", "ValueError: cannot be reached", f"OSError: {SHOWN}", "OSError: no route"):
        assert text.count(line) == 1
