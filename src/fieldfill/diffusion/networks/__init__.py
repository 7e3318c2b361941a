"""Networks: features (B, F, T, H, W) and log-SNR (B,) → (B, C, T, H, W), without knowledge of diffusion."""
