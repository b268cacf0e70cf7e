"""The embedded model's gates, on what it never learned from; needs its weights, takes minutes."""
