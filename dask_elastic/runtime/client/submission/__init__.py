"""How a topology becomes a job: its description, the registration of the plugins, and the start."""
