"""Commands that look at a checkpoint's weights: `show` and `check`. Imported where they run: torch takes seconds."""
