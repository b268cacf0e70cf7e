"""Every message and setting on the wire; imports pydantic and nothing heavier."""
