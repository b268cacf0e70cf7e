"""Starts, watches and stops the programs of one machine; never imports the model."""
