"""Domain of the embedded model: generated questions, replies and facts."""
