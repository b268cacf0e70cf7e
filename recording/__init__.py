"""What a conversation leaves on disk: writing it, mending it after a crash, replaying, cleaning up.

Importing this imports nothing. What a gateway needs (names, records, folders, recovery, cleanup)
stays free of numpy; sound and pictures are opened only by `pcm` and the `replay` modules.
"""
