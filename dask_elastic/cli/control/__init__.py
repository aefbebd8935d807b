"""Commands about the control loop: why cores are where they are, and recordings of its snapshots."""
