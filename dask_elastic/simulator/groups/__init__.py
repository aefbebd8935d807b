"""Key groups that move between executors while a simulated job runs."""
