"""Homes of the executors of running jobs: where they are, moves of them, and workers that are emptied."""
