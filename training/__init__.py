"""Recipes that make models of our own; nothing here is needed to serve one."""
