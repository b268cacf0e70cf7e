"""Pure and small parts: no weights, no network, no sleep."""
