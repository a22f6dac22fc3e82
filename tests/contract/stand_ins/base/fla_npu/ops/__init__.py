"""The folder of the kernels."""
