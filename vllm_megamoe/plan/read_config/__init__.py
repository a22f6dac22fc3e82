"""MoeFacts from config.json alone: what a model needs is known before a weight is read."""
