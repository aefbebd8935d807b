"""Windows: what they are, how complete ones are formed from partials, and when it pays (Enorm, sections 4.2 to 6.1)."""
