"""Every decision, taken once from config alone. `plan_layer` is a pure function of facts and options."""

from vllm_megamoe.plan.registry import register_model_facts

__all__ = ["register_model_facts"]
