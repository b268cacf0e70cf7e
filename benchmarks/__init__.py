"""Programs that measure the model on the machine they run on."""
