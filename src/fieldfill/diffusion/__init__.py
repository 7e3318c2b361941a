"""Diffusion: the noise schedule, the denoiser, its loss, its training and validation."""
