"""The command `vllm-megamoe`: what a configuration would do, said before anything is started.

It reads config files and the plan; it imports neither torch nor vLLM, so an answer takes a fraction of a second.
"""
