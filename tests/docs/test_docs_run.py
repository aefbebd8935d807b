from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

sys.path.insert(0, str(Path(__file__).parent))
import page  # noqa: E402

sys.path.pop(0)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def heading_anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", [p for p in PAGES if page.blocks(p.read_text(encoding="utf-8"))], ids=name_of)
def test_code_of_page_runs_and_prints_the_shown_output(path, tmp_path, tmp_path_factory):
    # A reader keeps the folders that pages make for checkpoints; pytest removes them.
    temporary = tmp_path_factory.mktemp("temporary")
    here = [str(ROOT), str(ROOT / "plugins"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore:Port", str(ROOT / "tests" / "docs" / "page.py"), str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(here), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    for block, output in zip(page.blocks(path.read_text(encoding="utf-8")), printed, strict=True):
        if block.prints is not None:
            assert squeezed(output) == squeezed(block.prints), f"{name_of(path)}, line {block.line}"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_have_existing_targets(path):
    dead = []
    for link in LINK.findall(page.BLOCK.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        if not target.exists() or (anchor and anchor not in heading_anchors(target.read_text(encoding="utf-8"))):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=name_of)
def test_every_page_is_reachable_from_the_start_page(path):
    start = ROOT / "docs" / "index.md"
    seen, waiting = {start}, [start]
    while waiting:
        here = waiting.pop()
        for link in LINK.findall(here.read_text(encoding="utf-8")):
            target = (here.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in seen:
                seen.add(target)
                waiting.append(target)
    assert path in seen
