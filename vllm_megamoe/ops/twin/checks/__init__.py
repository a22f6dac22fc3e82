"""What a buffer and a call must be. Profile `none` refuses what has no meaning; products add their limits."""
