"""The control loop: what is measured becomes decisions."""
