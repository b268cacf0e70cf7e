"""A complete checkpoint at toy size with random weights, for tests and demonstrations."""
