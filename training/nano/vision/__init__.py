"""Eyes: pictures made for training, the vision tower and the resampler, and their stages."""
