"""One form for every refusal: the argument, its value, the rule, where the rule stands, what to do."""

from vllm_megamoe.errors import OperatorError


def refusal(argument: str, value: object, rule: object, source: str, remedy: str) -> OperatorError:
    """The error to raise for an argument that the operator refuses.

    Args:
        argument: name in the public signature.
        value: what came, as it should be printed.
        rule: what is wanted, as the end of a sentence that begins so.
        source: document or file of the rule.
        remedy: what the caller can do.
    """
    return OperatorError(f"{argument}={value}; wanted {rule} ({source}). {remedy}")
