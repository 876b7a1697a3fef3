"""Figures of trained runs, one per file, and the catalogue that lists them. See `analysis` for evaluation."""
