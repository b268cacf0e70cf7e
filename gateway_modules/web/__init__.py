"""The web server, its limits, and HTTP responses; independent of queue and routes."""
