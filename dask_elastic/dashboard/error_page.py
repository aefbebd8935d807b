"""The page that a viewer sees if drawing another one raises."""

from __future__ import annotations

import logging
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from bokeh.models import Div

from dask_elastic.dashboard.style_sheet import text_style

if TYPE_CHECKING:
    from bokeh.document import Document

logger = logging.getLogger("dask_elastic.scheduler")


def page_or_error(path: str, fill: Callable[[Document], None]) -> Callable[[Document], None]:
    """Return a function that draws a page, or the error if that raises.

    Bokeh answers nothing if a page raises while it is drawn for a new viewer, so that the browser would wait for ever.

    Parameters
    ----------
    path : str
        The path of the page, for the log.
    fill : callable
        Fills a document with the page.
    """

    def filled(doc: Document) -> None:
        try:
            fill(doc)
        except Exception as error:  # the viewer and the log see it
            logger.exception("The page %s cannot be drawn", path)
            doc.clear()
            doc.add_root(_explanation(error))
            doc.title = "Dask: Elastic"

    return filled


def _explanation(error: Exception) -> Div:
    text = (
        f'<p class="condition bad">This page cannot be drawn: {escape(type(error).__name__)}: {escape(str(error))}. '
        "The scheduler's log has the traceback. Load the page again to try again; jobs are not affected.</p>"
    )
    return Div(name="error", text=text, sizing_mode="stretch_width", stylesheets=text_style())
