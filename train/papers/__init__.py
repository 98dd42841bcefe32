"""What single papers add to training."""
