"""The recipe of the nano: data, stages and export of the embedded model."""
