"""The papers' figures and tables: each module computes and draws some of them as its ``FIGURES``."""
