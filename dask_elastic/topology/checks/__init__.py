"""What a topology as a whole has to meet, as far as it is known without a cluster."""
