"""One client's socket from its first word to its last, and the texts both ways."""
