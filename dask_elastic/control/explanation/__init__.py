"""Why the cores of a job are where they are, what the next decision would be, and what a higher load would change."""
