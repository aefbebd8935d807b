"""How rows and messages travel between workers and threads: packets, lanes, channels, credit, wake-ups."""
