"""Figures of trained runs, one per file, and the catalogue that lists them. Evaluation belongs to `analysis`."""
