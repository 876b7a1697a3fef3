"""Figures, one a file; each is a function from a trained run to a matplotlib figure."""
