"""A complete checkpoint of toy size with random weights, for tests and demonstrations."""
