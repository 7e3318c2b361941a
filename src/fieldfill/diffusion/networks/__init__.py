"""Networks: from features and a noise level to an estimate of the field, on plain tensors; independent of diffusion."""
