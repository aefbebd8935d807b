"""What client, scheduler and workers say to each other: specs, calls, reports, errors on the wire."""
