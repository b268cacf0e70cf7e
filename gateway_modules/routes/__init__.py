"""The HTTP routes, the sockets' addresses, and what every request passes first."""
