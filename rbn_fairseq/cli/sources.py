"""The table of where TID comes from."""

from collections.abc import Mapping

from rich.table import Table

from rbn_fairseq.diagnostics import TID, decompose, squared_share

__all__ = ["sources_table"]


def sources_table(measured: Mapping[str, Mapping[str, Mapping[str, TID]]]) -> Table:
    """Return the decomposition of every checkpoint's squared TID.

    Args:
        measured: TID by checkpoint, by source, and by place (last layer, average of layers). The
            sources are ``as-trained`` and ``random``; ``permuted`` and ``independent`` are
            references.
    """
    references = [
        name
        for name in ("permuted", "independent")
        if all(name in sources for sources in measured.values())
    ]
    table = Table(
        title="Where TID comes from: % of squared as-trained TID",
        caption=f"{' and '.join(references)} tokens: a reference, not a floor",
    )
    for column in ("checkpoint", "TID"):
        table.add_column(column, overflow="fold")
    for column in ("sentence sampling", "length bucketing", *references):
        table.add_column(column, justify="right", overflow="fold")
    for label, sources in measured.items():
        for place, whole in sources["as-trained"].items():
            parts = list(decompose(whole, sources["random"][place]))
            parts += [squared_share(sources[name][place], whole) for name in references]
            for moment, shares in zip(("mean", "variance"), zip(*parts, strict=True), strict=True):
                cells = [f"{100 * share:.1f}" for share in shares]
                table.add_row(label, f"{place}, {moment}", *cells)
        table.add_section()
    return table
