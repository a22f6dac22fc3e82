"""Matrix products that read weights as they are stored, made for this processor by LLVM.

product     which kernel multiplies which weights
k_first, k_last, integers     the loops: for BF16 and integers, for MX, for integers where bytes can be multiplied
task        what a kernel is told, and how threads share its work
decode      stored weights as vectors of float32
code        LLVM's language
build       from text to a function; what is kept between processes
"""
