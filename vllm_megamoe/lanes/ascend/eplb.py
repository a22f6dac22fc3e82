"""vllm-ascend's dynamic EPLB over our operands: it measures, plans, moves; here it learns what an expert consists of.

Its adaptor looks for parameters by names that hang on its own kinds of quantisation, and refuses W4A8-MXFP (0.30.0rc2,
eplb/adaptor/vllm_adaptor.py). Ours have one rule for every use case: each tensor of an operand list belongs to an
expert, and goes with it. Ids are mapped to physical experts by vllm-ascend's layer before our method sees them.
"""

import functools
from typing import Any

from vllm_megamoe.errors import ConfigError
from vllm_megamoe.layer.moving import bytes_of, parts_of


def is_dynamic() -> bool:
    """Whether vllm-ascend moves experts in this process."""
    from vllm_ascend.ascend_config import get_ascend_config

    return bool(get_ascend_config().eplb_config.dynamic_eplb)


@functools.cache
def teach_adaptor() -> None:
    """Let vllm-ascend's adaptor take the operands of our layers; others stay as they are."""
    from vllm_ascend.eplb.adaptor import vllm_adaptor

    adaptor = vllm_adaptor.VllmEplbAdaptor
    theirs = adaptor.init_expert_param_per_layer

    def init_expert_param_per_layer(self: Any) -> None:
        ours = [layer for layer in self.moe_layers if hasattr(layer, "mega_moe")]
        if not ours:
            theirs(self)
            return
        if len(ours) < len(self.moe_layers):
            raise ConfigError(
                f"eplb_config.dynamic_eplb: {len(ours)} of {len(self.moe_layers)} MoE layers are run by the operator; "
                "expected all of them. Drop eplb_config.dynamic_eplb."
            )
        self.param_dict = {}
        for index, layer in enumerate(ours):
            _show(self, index, layer, vllm_adaptor.EPLB_EXPERT_WEIGHT_NAMES)

    adaptor.init_expert_param_per_layer = init_expert_param_per_layer


def _show(adaptor: Any, index: int, layer: Any, names_of: dict[Any, tuple[str, ...]]) -> None:
    """The tensors of each expert of one layer, and one more list by tensor, as the adaptor keeps them."""
    state = layer.mega_moe
    slots = [
        [bytes_of(tensor) for tensor in parts_of(state.operands, slot)] for slot in range(state.plan.experts_per_rank)
    ]
    key = "megamoe", state.plan.use_case.value, tuple(tensor.shape for tensor in slots[0])
    names = names_of[key] = tuple(f"operand_{number}" for number in range(len(slots[0])))
    adaptor.expert_weight_key_per_layer[index] = key
    adaptor.expert_param_per_layer[index] = slots
    adaptor.param_dict |= {f"{index}.{name}": [own[n] for own in slots] for n, name in enumerate(names)}
