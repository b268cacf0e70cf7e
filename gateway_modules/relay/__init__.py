"""One client's socket from its first message to its last, and the texts both ways."""
