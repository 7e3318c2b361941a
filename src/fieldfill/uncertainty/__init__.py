"""Uncertainty: standard deviations and quantiles of a fill, calibrated on held-out cells, and their budget."""
