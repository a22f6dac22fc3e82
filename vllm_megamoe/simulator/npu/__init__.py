"""The part of `torch_npu` that keeps formats, and the small module around it; `install` makes the whole one."""
