"""Sampling: from a trained denoiser to the best estimate (contexts) and to realisations (members)."""
