"""Makes .venv: vLLM for CPU, the package itself in editable form, and the tools of its tests.

Runs on the system's Python with the standard library alone, before anything is installed. Kept within Python 3.8's
grammar, so that an interpreter that is too old gets a sentence and not a SyntaxError.
"""
