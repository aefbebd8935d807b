"""What the control loop on the scheduler answers and publishes."""
