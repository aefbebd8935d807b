"""The figures of the page: lines, stacked areas and a heat map over time."""
