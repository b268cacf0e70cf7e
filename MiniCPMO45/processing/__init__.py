"""Preprocessing: text to token ids, audio to log-mels, images to patches."""
