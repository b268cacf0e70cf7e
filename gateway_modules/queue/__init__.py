"""The queue, the pool of workers, and the link between a desk and its doors."""
