"""Triton kernels of the device engine; imported only where Triton is installed."""
