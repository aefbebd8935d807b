"""Commands that change running jobs: their cores, where their state is, and whether they run."""
