"""How values appear in texts for people."""
