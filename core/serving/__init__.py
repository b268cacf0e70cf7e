"""The worker's side of a socket: one loop that runs any machine, and what carries its effects out.

Rules live in `core.protocols`; nothing here decides what a message means.
"""
