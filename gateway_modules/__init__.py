"""The gateway's parts: queue, workers, relays, routes. Knows people and queues and no tensors."""
