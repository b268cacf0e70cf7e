"""Three small models in a row that stand in for MiniCPM-o: ears, a language model, a voice."""
