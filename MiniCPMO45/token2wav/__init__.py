"""Speech tokens to waveform, and a recording to the voice that the waveform speaks with."""
