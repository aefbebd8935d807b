"""Messages between client, scheduler and workers: specs, typed calls and reports, their codec, and errors."""
