"""What a reader should know beside the plan: sentences that violate nothing."""

from collections.abc import Iterator

from vllm_megamoe.cli.model.facts import Model
from vllm_megamoe.cli.serve_line.line import ServeLine


def notes_of(model: Model, drafts_left_out: int, line: ServeLine | None) -> Iterator[str]:
    """Sentences about the model and the command line."""
    if model.layers and not model.known:
        yield (
            f"{model.architecture or 'This architecture'} stands in no table: its config was read by the names that "
            "most configs share. Compare the sizes with the model's code, or teach it with register_model_facts."
        )
    for each in model.formats:
        if not each.loads:
            yield f"{each.label} cannot be loaded yet; {each.note}."
    if drafts_left_out:
        yield f"{drafts_left_out} draft (MTP) layer(s) with experts are left out; --draft plans them, for speculation."
    if line is not None and line.value("config") is not None:
        yield f"--config {line.value('config')} is not read: flags in it are not part of this plan."
