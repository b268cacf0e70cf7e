"""Voices and presets that pages and clients may name."""
