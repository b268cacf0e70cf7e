"""The sections of the configuration, and their sources. Programs use `config.load_settings`."""
