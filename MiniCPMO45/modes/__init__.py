"""The algorithms: duplex units, streamed turns and one-shot chat, as generators of requests."""
