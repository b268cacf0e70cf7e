"""Three small models in a row that stand in for MiniCPM-o: Whisper, a language model, hibari."""
