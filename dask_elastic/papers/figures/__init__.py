"""The papers' figures and tables, computed and drawn again."""
