"""The parts of the configuration: one frozen section each, and reading them from where they stand.

Programs use `config.load_settings`. Importing this package imports nothing but pydantic.
"""
