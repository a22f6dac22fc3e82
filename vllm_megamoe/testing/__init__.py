"""Testing without an NPU: what the package's own tests and demo use, and the pytest plugin for other people's tests.

    plugin        fixtures for pytest (entry point `megamoe`): tiny checkpoints, twin, simulated NPU, served engines
    asserts       what a test says of engines and of a layer; layer_match does the second
    checkpoints   tiny checkpoints in every family (tiny_models) and format (formats/), with a tokenizer
    simulated     a simulated torch_npu and operator package for a test or a whole session

    process       a program in a session of its own, ended with all that it started; signals; what its log tells
    server        `vllm serve` on a free port, and a client for it
    ranks         processes that answer one case after the other, with a time limit on each; gloo worlds of them
    engines       such processes with vLLM inside, which build one engine after the other

Only `plugin` needs pytest. Importing this brings neither torch nor vLLM.
"""

from vllm_megamoe.testing.asserts import assert_layer_matches, assert_same_logprobs

__all__ = ["assert_layer_matches", "assert_same_logprobs"]
