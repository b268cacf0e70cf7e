"""The gateway's parts: queue, relays, routes and web server; no tensors."""
