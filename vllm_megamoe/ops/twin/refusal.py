"""One form for every refusal: the argument, its value, the rule, where the rule stands, what to do."""

from vllm_megamoe.errors import OperatorError


def refusal(argument: str, value: object, rule: str, source: str, remedy: str) -> OperatorError:
    """The error to raise for an argument that the operator refuses.

    Args:
        argument: name in the public signature.
        value: what came, as it should be printed.
        rule: what is wanted.
        source: document or file of the rule.
        remedy: what the caller can do.
    """
    return OperatorError(f"{argument}={value}: {rule} ({source}). {remedy}")
