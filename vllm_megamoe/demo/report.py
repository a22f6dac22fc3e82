"""How the demo shows what it found."""

from rich.console import Console
from rich.table import Table

from vllm_megamoe.demo.comparison import Difference
from vllm_megamoe.demo.load import LoadByLayer


def show_load(console: Console, load: LoadByLayer) -> None:
    """Print tokens per expert, a line for each layer."""
    table = Table("layer", *(f"e{expert}" for expert in range(max(map(len, load.values())))), "all")
    for column in table.columns[1:]:
        column.justify = "right"
    for layer in sorted(load):
        counts = load[layer]
        table.add_row(layer, *map(str, counts), str(sum(counts)))
    console.print(table)


def show_difference(console: Console, found: Difference, limit: float | None) -> None:
    """Print what the comparison found, and the limit that it is judged by if there is one."""
    console.print(f"    places compared: {found.places}, the baseline's likeliest tokens at each", highlight=False)
    console.print(f"    largest log-probability difference: [bold]{found.largest:.4f}[/] (mean {found.mean:.4f})")
    if limit is not None:
        console.print(f"    limit for a model in bf16: {limit}")
    console.print(
        f"    left to go on alone, greedily: {found.equal_tokens} of {found.tokens} tokens as the baseline's "
        "(one near-tie that falls the other way changes all that follow)"
    )
