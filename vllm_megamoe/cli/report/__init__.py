"""The answer of `plan` as data: what `--json` prints, and what the tables show."""
