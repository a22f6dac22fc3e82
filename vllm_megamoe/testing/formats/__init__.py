"""How each tool stores a linear's weights: writers of tiny checkpoints, and what their tensors mean.

    address     codes and scales that say which weight they are; or noise of a size that a model can run with
    scheme      one linear in one format: its tensors, and apart from them the numbers that they mean
    integers, floats, gptq_awq
                the schemes of msModelSlim, compressed-tensors, Quark, ModelOpt, AutoRound, GPTQ, AWQ and FP8 files
    sections    `quantization_config` as each tool writes it

Nothing here reads a checkpoint: readers are judged by it.
"""
