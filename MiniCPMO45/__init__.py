"""MiniCPM-o 4.5: weights and algorithms. No state of a conversation lives in this package."""
