"""Where the state of a job is kept on a worker: in memory, or in files."""
