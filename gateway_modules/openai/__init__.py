"""The part of OpenAI's HTTP interface that this server offers, below /v1."""
