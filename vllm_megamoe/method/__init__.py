"""The MoE method: weights into operands, one buffer per layer, one operator call per layer and step."""
