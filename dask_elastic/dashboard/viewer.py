"""What a document knows of the one who looks at it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bokeh.document import Document

PERIOD_MILLISECONDS = 1000


def wanted_job(doc: Document) -> str | None:
    """Return the job that the address names, as in ``/elastic?job=flights``."""
    context = doc.session_context
    request = getattr(context, "request", None)
    values = request.arguments.get("job") if request is not None else None
    return values[-1].decode() if values else None


def has_viewer(doc: Document) -> bool:
    """Tell whether a browser is connected; Bokeh keeps a document for a while after the last one has left."""
    session = getattr(doc.session_context, "session", None)
    return session is not None and session.connection_count > 0


def keep_up_to_date(doc: Document, update: Callable[[], None]) -> None:
    """Call a function every second for as long as somebody looks."""

    def tick() -> None:
        if has_viewer(doc):
            update()

    doc.add_periodic_callback(tick, PERIOD_MILLISECONDS)
