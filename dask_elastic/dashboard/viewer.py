"""The viewer of a document: the job in its URL, and whether it is connected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bokeh.document import Document

PERIOD_MILLISECONDS = 1000


def wanted_job(doc: Document) -> str | None:
    """Return the job named in the URL, as in ``/elastic?job=flights``; None if there is none."""
    context = doc.session_context
    request = getattr(context, "request", None)
    values = request.arguments.get("job") if request is not None else None
    return values[-1].decode() if values else None


def has_viewer(doc: Document) -> bool:
    """Return whether a browser is connected; Bokeh keeps a document for some time after the last one disconnects."""
    session = getattr(doc.session_context, "session", None)
    return session is not None and session.connection_count > 0


def keep_up_to_date(doc: Document, update: Callable[[], None]) -> None:
    """Call a function every second while a browser is connected."""

    def tick() -> None:
        if has_viewer(doc):
            update()

    doc.add_periodic_callback(tick, PERIOD_MILLISECONDS)
