"""What runs in the process of a user: submitting topologies, handles on jobs, views of them."""
