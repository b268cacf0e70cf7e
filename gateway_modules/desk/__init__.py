"""The pool in one process and the sockets in others: what they say to each other."""
