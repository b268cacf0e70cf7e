"""HTTP routes, WebSocket endpoints and middleware."""
