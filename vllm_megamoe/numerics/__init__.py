"""Number formats, rounding and scales, as pure functions of tensors."""
