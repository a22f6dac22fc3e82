"""The lock of this environment is what its tool writes in an environment that was made from it."""

from tools.contract_env.lock import HEADER, LOCK, ROOTS
from tools.lock import closure, render


def test_is_what_the_lock_tool_writes() -> None:
    assert render(closure(ROOTS), HEADER) == LOCK.read_text()
