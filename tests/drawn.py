"""How Hypothesis draws: the same few examples in every `make test`, new and more of them in `make test-full`.

`make test-full` runs every drawn test with the profile `new`; a failure prints the line that reproduces it. A test that
says nothing takes the profile's number of examples; one whose examples are costly says its own with `examples`.
"""

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None, max_examples=30)
settings.register_profile("new", derandomize=False, deadline=None, max_examples=300, print_blob=True)
settings.load_profile("same")


def examples(few: int, many: int) -> int:
    """How many examples a test draws: `few` in `make test`, `many` in `make test-full`."""
    return many if settings.get_current_profile_name() == "new" else few
