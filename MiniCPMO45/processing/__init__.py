"""What goes into the model: text, sound and pictures as ids, log-mels and patches."""
