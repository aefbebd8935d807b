"""Modules of the user's process: submission of topologies, handles on jobs and views of them."""
