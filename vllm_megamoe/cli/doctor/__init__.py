"""`doctor`: what the environment has, what it lacks, and the command that fixes it. Nothing heavy is imported."""
