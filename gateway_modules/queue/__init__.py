"""Who waits, which worker comes next, and what is known of the workers."""
