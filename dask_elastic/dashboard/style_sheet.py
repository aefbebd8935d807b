"""The style of text on the page, light or dark as the browser prefers."""

from __future__ import annotations

from bokeh.models import InlineStyleSheet

TEXT = """
:host { --paper: #fafafa; --link: #2a6496; --edge: #8a919c; }
@media (prefers-color-scheme: dark) { :host { --paper: #16191d; --link: #7fb2e5; --edge: #767e88; } }
:host { color: inherit; font-family: Helvetica, Arial, sans-serif; font-size: 13px; }
:host > div { width: 100%; }
.tiles { display: flex; flex-wrap: wrap; gap: 8px; }
.tile { flex: 1 1 118px; padding: 7px 11px 8px; border-radius: 5px; background: rgba(125, 133, 144, 0.12); }
.tile .label { font-size: 11px; opacity: 0.7; }
.tile .value { font-size: 21px; line-height: 1.25; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile .note { font-size: 11px; opacity: 0.8; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile.good { box-shadow: inset 3px 0 0 #2f9e77; }
.tile.missed { box-shadow: inset 3px 0 0 #c9513a; }
.condition { margin: 6px 0 0; padding: 6px 11px; border-radius: 5px; border-left: 4px solid; line-height: 1.4; }
.condition.bad { border-color: #c9513a; background: rgba(201, 81, 58, 0.14); }
.condition.warning { border-color: #e08e2b; background: rgba(224, 142, 43, 0.14); }
.condition.hint { border-color: #7d8590; background: rgba(125, 133, 144, 0.10); }
.newest { margin: 8px 0 0; font-size: 12px; opacity: 0.85; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; }
h2 { font-size: 13px; font-weight: bold; margin: 4px 0 6px; }
.scroll { overflow: auto; }
table { border-collapse: collapse; width: 100%; font-size: 12px; }
th { text-align: left; font-weight: normal; opacity: 0.7; padding: 3px 12px 3px 0; white-space: nowrap; }
td { padding: 4px 12px 4px 0; vertical-align: top; border-top: 1px solid rgba(125, 133, 144, 0.25); line-height: 1.35; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.time { white-space: nowrap; font-variant-numeric: tabular-nums; }
td.what { min-width: 190px; }
tr.held td { opacity: 0.62; }
.badge { font-size: 10.5px; padding: 1px 6px; border-radius: 8px; background: rgba(224, 142, 43, 0.25);
  margin-left: 6px; white-space: nowrap; }
.badge.plain { background: rgba(125, 133, 144, 0.2); }
.swatch { display: inline-block; width: 9px; height: 9px; border-radius: 2px; margin-right: 6px; }
.welcome h1 { margin-bottom: 12px; }
.welcome { max-width: 640px; margin: 6vh auto; line-height: 1.55; font-size: 15px; }
.welcome pre { margin: 14px 0; background: rgba(125, 133, 144, 0.12); padding: 14px 18px; border-radius: 5px;
  font-size: 13px; line-height: 1.5; overflow: auto; }
.empty { opacity: 0.7; padding: 8px 0; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
.jobs { max-height: 238px; }
td.job { white-space: nowrap; }
td.error { max-width: 300px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
tr.shown td { background: rgba(125, 133, 144, 0.14); }
tr.shown td:first-child { font-weight: bold; box-shadow: inset 3px 0 0 var(--link); padding-left: 9px; }
.badge.bad { background: rgba(201, 81, 58, 0.3); }
td .badge:first-child { margin-left: 0; }
.workers { margin: 0; font-size: 12px; line-height: 1.7; }
.workers > span { white-space: nowrap; margin-right: 14px; }
svg.graph { display: block; max-width: 100%; height: auto; margin: 0 auto; font-size: 12px; }
svg.graph text { fill: currentColor; }
svg.graph .paper { fill: var(--paper); }
svg.graph .name { font-weight: bold; }
svg.graph .kind, svg.graph .state { font-size: 11px; fill-opacity: 0.85; }
svg.graph .rate { font-size: 11px; font-variant-numeric: tabular-nums; }
svg.graph .badge { font-size: 10.5px; fill: white; }
svg.graph .edge path { stroke: var(--edge); }
svg.graph .edge .head { fill: var(--edge); stroke: none; }
.marks { margin: 6px 0 0; font-size: 11px; opacity: 0.8; text-align: center; }
.marks .mark { margin: 0 9px; white-space: nowrap; }
"""


FIELD = """
@media (prefers-color-scheme: dark) {
  .bk-input { background-color: #22272d; color: #d5dae0; border-color: #4a525c; }
}
"""


def field_style() -> list[InlineStyleSheet]:
    """Return a new style sheet for a field."""
    return [InlineStyleSheet(css=FIELD)]


def text_style() -> list[InlineStyleSheet]:
    """Return a new style sheet for a `Div`; Bokeh does not let documents share one."""
    return [InlineStyleSheet(css=TEXT)]
