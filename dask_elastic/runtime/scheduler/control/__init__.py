"""What the control loop on the scheduler answers and publishes, and what slower loops beside it share."""
