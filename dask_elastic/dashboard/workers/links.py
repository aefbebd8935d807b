"""Links to Dask's pages of workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from typing import Any
from urllib.parse import quote

from bokeh.events import Tap
from bokeh.models import CustomJS, Div
from bokeh.plotting import figure

from dask_elastic.dashboard.colors import STACKED_NAMES, node_colors
from dask_elastic.dashboard.quantities import plural
from dask_elastic.dashboard.style_sheet import text_style

LISTED = 24
"""Largest number of workers that are listed; Dask's page of all workers has the others."""

ALL_WORKERS = "info/main/workers.html"


def worker_page(address: str) -> str:
    """Return the path of Dask's page of a worker, relative to the dashboard's pages.

    Examples
    --------
    >>> worker_page("tcp://10.0.0.1:4000")
    'info/worker/tcp%3A%2F%2F10.0.0.1%3A4000.html'
    """
    return f"info/worker/{quote(address, safe='')}.html"


def short_address(address: str) -> str:
    """Return an address without its protocol.

    Examples
    --------
    >>> short_address("tls://10.0.0.1:4000")
    '10.0.0.1:4000'
    """
    return address.rpartition("://")[2]


def open_on_tap(drawn: figure, addresses: Sequence[str], find: str, **models: Any) -> None:
    """Open Dask's page of a worker when the viewer clicks on its part of a figure.

    Parameters
    ----------
    drawn : figure
        The figure.
    addresses : sequence of str
        The workers.
    find : str
        JavaScript that sets `place`, the worker's place in `addresses`, from `cb_obj.x` and `cb_obj.y`.
    **models
        Bokeh's models that the code uses.
    """
    pages = json.dumps([worker_page(address) for address in addresses])
    code = f"let place = -1; {find} const page = {pages}[place]; if (page) window.open(page, '_blank');"
    drawn.js_on_event(Tap, CustomJS(args=models, code=code))


class WorkerLinks:
    """One line with a link for each worker on which the job has cores."""

    def __init__(self) -> None:
        self.root = Div(name="workers", sizing_mode="stretch_width", stylesheets=text_style())

    def update(self, addresses: Sequence[str]) -> None:
        """Show links to the pages of these workers."""
        # Only stacks have a colour for each worker.
        colors = node_colors(addresses) if len(addresses) <= STACKED_NAMES else []
        swatches = [f'<span class="swatch" style="background: {color}"></span>' for color in colors]
        links = [
            f'<span>{swatch}<a href="{worker_page(address)}">{escape(short_address(address))}</a></span>'
            for address, swatch in zip_longest(addresses[:LISTED], swatches, fillvalue="")
        ]
        more = len(addresses) - LISTED
        if more > 0:
            links.append(f'<span>and <a href="{ALL_WORKERS}">{plural(more, "more worker")}</a></span>')
        # Spaces let the line break between links.
        text = f'<p class="workers"><b>Dask\'s pages of the workers</b> &nbsp; {" ".join(links)}</p>' if links else ""
        if text != self.root.text:
            self.root.text = text
