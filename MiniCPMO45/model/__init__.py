"""The modules of the checkpoint under their published names; weights only."""
