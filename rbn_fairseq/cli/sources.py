"""The table of where TID comes from."""

from collections.abc import Mapping

from rich.table import Table

from rbn_fairseq.diagnostics import TID, decompose, squared_share

__all__ = ["sources_table"]


def sources_table(rows: Mapping[str, Mapping[str, Mapping[str, TID]]]) -> Table:
    """Return the decomposition of every checkpoint's squared TID.

    Args:
        rows: TID by checkpoint, by source, and by place (last layer, average of layers). The
            sources are ``as-trained`` and ``random``; others are references.
    """
    table = Table("checkpoint", title="Where TID comes from: % of squared as-trained TID")
    table.add_column("part", overflow="fold")
    places = list(next(iter(rows.values()))["as-trained"])
    for place in places:
        table.add_column(f"{place}: mean", justify="right")
        table.add_column("variance", justify="right")
    for label, sources in rows.items():
        whole, random = sources["as-trained"], sources["random"]
        split = [decompose(whole[place], random[place]) for place in places]
        parts = {
            "sentence sampling (random)": [part.sentence_sampling for part in split],
            "length bucketing (as-trained less random)": [part.length_bucketing for part in split],
        }
        for name in ("permuted", "independent"):
            if name in sources:
                shares = [squared_share(sources[name][place], whole[place]) for place in places]
                parts[f"{name} tokens (a reference, not a floor)"] = shares
        for part, shares in parts.items():
            cells = [f"{100 * value:.1f}" for share in shares for value in share]
            table.add_row(label, part, *cells)
        table.add_section()
    return table
