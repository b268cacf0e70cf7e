"""Relays between clients' and workers' sockets."""
