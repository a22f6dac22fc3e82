"""The whole model from config.json alone: its tensors, what they take on a rank, and what a sequence keeps."""
