"""The service's shared parts: words, rules, media and views. Importing this imports nothing."""
