"""Training of the embedded model: data, stages and export."""
