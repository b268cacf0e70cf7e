"""The vocoder: speech codes to mel (flow), mel to waveform (HiFT), and the voices."""
