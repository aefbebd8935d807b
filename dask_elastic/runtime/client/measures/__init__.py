"""What a job's handle returns about its measurements."""
