"""Compares every tensor of a folder of recorded reference outputs with what this code computes."""
