"""Gates of the embedded model: required figures, measured on held-out data."""
