"""The operator's CPU twin: same layouts, same rounding points, torch.distributed in place of the device's windows.

In the order of a call:

    buffers          the backend: makes SymmBuffers, sends their calls into the custom op
    known            a call like an earlier one, of which only the rows are read
    state            what is kept for a buffer
    op               for torch.compile: the public arguments as those of one opaque custom op, and read again inside it
    run              the steps inside it
    read_call, read_weights     what a call must be; the result is a `call.Call`
    routing          which row goes to which expert, and the record that travels
    session          the conversation with the other ranks: `header` is what they tell each other, `link` the messages
    families         the arithmetic of the six use cases, on `gemm` (and `plain_copy`)
    kernels          products on stored bytes, made for this processor by LLVM
    way_back         output rows on their way home, plain or merged
    combine          the sum of a token, and what stands in slots that no row landed in
"""
