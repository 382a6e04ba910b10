"""What computes a plan: one backend each for Triton, xformers, any torch device, and checking."""
