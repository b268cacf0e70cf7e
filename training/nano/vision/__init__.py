"""Pictures made for training, the vision encoder, and the stages that train it."""
