"""`doctor`: what the environment has, what it lacks, and the command that mends it. Nothing heavy is imported."""
