"""Key groups of running jobs: which executor owns them, and moves of them."""
