"""The web server, its limits, and the HTTP answers. Knows neither queue nor routes."""
