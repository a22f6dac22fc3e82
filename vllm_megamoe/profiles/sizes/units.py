"""Units and rounding of the size formulas."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def ceil_div(value: int, divisor: int) -> int:
    """`value / divisor`, rounded up."""
    return -(-value // divisor)
