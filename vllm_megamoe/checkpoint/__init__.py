"""Which format a checkpoint's experts have."""
