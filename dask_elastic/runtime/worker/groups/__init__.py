"""Key groups that move between executors, as the nodes of a job carry it out."""
