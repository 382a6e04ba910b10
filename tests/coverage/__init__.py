"""Every denoiser class of diffusers: a tiny one, one call of it, and what accel makes of it."""
