"""The state of joins: rows that wait for rows of the other side."""
