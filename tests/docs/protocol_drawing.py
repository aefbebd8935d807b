"""The picture of the labelled shard move in the architecture page, made from the protocol's own table.

``python tests/docs/protocol_drawing.py`` writes it into the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from dask_elastic.migration.labelled import TABLE, Action, Phase

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
PLACE = re.compile(r"(<!-- protocol: [^\n]*-->\n)(.*?)(<!-- end of protocol -->)", re.DOTALL)


def drawing() -> str:
    """Return the protocol as a Mermaid state diagram, and its actions as a table."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.LABELLED.value}: pause the shard, send the label"]
    arrows = (
        f"    {phase.value} --> {following.value}: {event.value} / {action.name}"
        for (phase, event, _), (following, action) in TABLE.items()
    )
    lines += dict.fromkeys(arrows)
    lines += [f"    {Phase.ARRIVED.value} --> [*]", "```", "", "| action | what the executor does |", "|---|---|"]
    lines += [f"| `{action.name}` | {action.value} |" for action in Action]
    return "\n" + "\n".join(lines) + "\n\n"


def drawn() -> str:
    """Return what the page shows."""
    found = PLACE.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, f"{PAGE} has no place for the protocol"
    return found[2]


if __name__ == "__main__":
    PAGE.write_text(PLACE.sub(lambda found: found[1] + drawing() + found[3], PAGE.read_text(encoding="utf-8")))
