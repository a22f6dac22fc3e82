"""One harness for whatever has to run in processes of its own: used by the demo and by the test suite.

    process    a program in a session of its own, ended with all that it started; signals; what its log tells
    server     `vllm serve` on a free port, and a client for it
    ranks      processes that answer one case after the other, with a time limit on each; gloo worlds of them
    engines    such processes with vLLM inside, which build one engine after the other

Nothing here needs pytest. Importing it brings neither torch nor vLLM.
"""
