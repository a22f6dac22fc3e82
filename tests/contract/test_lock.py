"""The lock of this environment is what its tool writes in an environment that was made from it."""

from tools.contract_env.lock import LOCK, ROOTS, closure, render


def test_is_what_the_lock_tool_writes() -> None:
    assert render(closure(ROOTS)) == LOCK.read_text()
