from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site as `make docs` builds it, and what Sphinx printed."""
    site = tmp_path_factory.mktemp("site")
    options = ["--builder", "html", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    places = ["--doctree-dir", site / "doctrees", DOCS, site / "html"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, *map(str, places)],
        capture_output=True,
        text=True,
        check=False,
    )
    return site / "html", done


# Ten seconds where the machine is idle.
@pytest.mark.timeout(600)
def test_site_builds_without_warnings(built):
    _, done = built
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
def test_site_names_every_page_in_its_navigation(built):
    html, _ = built
    start = (html / "index.html").read_text(encoding="utf-8")
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.glob("*.md")}
    assert [str(page) for page in sorted(pages) if page.name != "index.html" and f'href="{page}"' not in start] == []


@pytest.mark.timeout(600)
def test_site_reports_its_readers_to_no_one(built):
    html, _ = built
    tracked = [path.name for path in html.rglob("*.html") if "googletagmanager" in path.read_text(encoding="utf-8")]
    assert tracked == []


@pytest.mark.timeout(600)
def test_tests_that_share_the_site_run_in_one_process(built, request):
    """Otherwise each process of pytest-xdist builds a site."""
    grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@docs/test_site") == bool(grouped)
