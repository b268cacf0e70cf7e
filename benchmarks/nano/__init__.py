"""The gates of the embedded model: what it has to reach, measured on what it never learned from."""
