"""Tests of the real classes at toy size, float32, on the CPU."""
