"""The commands that take and list checkpoints, and continue jobs from them."""
