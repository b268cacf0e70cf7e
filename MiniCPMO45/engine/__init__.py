"""What answers requests: passes over paged caches, and the state of one conversation."""
