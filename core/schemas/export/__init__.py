"""The protocol for others: an AsyncAPI document, pages and types, which `__main__` writes."""
