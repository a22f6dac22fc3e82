"""Which format a checkpoint's experts have, and how each format becomes canonical experts."""
