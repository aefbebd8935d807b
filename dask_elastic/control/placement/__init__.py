"""Where the homes of executors are: the placement at submit, and the moves that planners propose while a job runs."""
