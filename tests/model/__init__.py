"""The real classes at toy size, float32, CPU."""
