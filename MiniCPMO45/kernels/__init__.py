"""The operations of the engine: each a function with its Triton kernel and its plain form."""
