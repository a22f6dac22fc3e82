"""A call behind the host checks, with what the kernels do that nobody asked for; the arithmetic is the twin's."""
