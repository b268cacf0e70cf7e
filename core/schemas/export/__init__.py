"""The protocol written out for others: an AsyncAPI document, pages, and types for the browser.

`python -m core.schemas.export` writes the files. Nothing here says what the models and tables say
already.
"""
