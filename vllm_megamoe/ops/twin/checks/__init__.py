"""What a buffer and a call must be. Profile `none` rejects what has no meaning; products add their limits."""
