"""The engine for graphics cards: CUDA graphs over paged caches, without graphs on the CPU."""
