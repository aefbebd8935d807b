"""The workers of a job on the page: links to their pages, and what is on each of them."""
