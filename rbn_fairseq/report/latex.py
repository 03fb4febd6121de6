"""A table as LaTeX, with booktabs."""

import re

from rbn_fairseq.report.blocks import Cell, Table
from rbn_fairseq.report.layout import PAPER, has_paper, is_long, letters, right_aligned, split_code

__all__ = ["to_latex"]

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "--": r"-{}-",  # or it becomes a dash
    '"': r"\textquotedbl{}",
    # After the end of a row these would be its options.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "’": "'",
    "\n": " ",
    **{character: "\\" + character for character in "&%_#${}"},
    **{
        character: rf"\ensuremath{{{command}}}"
        for character, command in {
            "±": r"\pm", "×": r"\times", "−": "-", "∞": r"\infty", "√": r"\surd", "‖": r"\|",
            "≤": r"\leq", "≥": r"\geq", "λ": r"\lambda", "ν": r"\nu", "μ": r"\mu",
            "σ": r"\sigma", "ρ": r"\rho", "²": "^2",
        }.items()
    },
}  # fmt: skip
_LINES = r">{\raggedright\arraybackslash}p{.3\linewidth}"  # a column of several lines
_SPECIAL = re.compile("|".join(re.escape(it) for it in _ESCAPES))


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text)


def _text(text: str) -> str:
    return "".join(
        rf"\texttt{{{_escape(part)}}}" if code else _escape(part) for part, code in split_code(text)
    )


def to_latex(table: Table) -> str:
    """Return a ``table`` environment, headed by a comment that names the packages it needs."""
    marks = letters(table)

    def cell(it: Cell) -> str:
        text = _text(it.text)
        if it.value is not None and it.text.startswith("-"):
            text = "$-$" + _text(it.text[1:])
        if it.paper and text:
            text = rf"\textcolor{{gray}}{{{text}}}"
        return text + (rf"\textsuperscript{{{marks[it.note]}}}" if it.note else "")

    def column(number: int, right: bool) -> str:
        long = any(is_long(row[number]) for row in table.rows)
        return "r" if right else _LINES if long else "l"

    columns = "".join(column(*it) for it in enumerate(right_aligned(table)))
    paper = has_paper(table)
    notes = [rf"\textsuperscript{{{mark}}} {_text(note)}" for note, mark in marks.items()]
    if paper:
        notes.append(rf"\textcolor{{gray}}{{Grey}}: {_text(PAPER)}.")
    notes += map(_text, table.notes)
    below = [
        r"  \par\smallskip",
        r"  \begin{minipage}{\linewidth}\footnotesize\raggedright",
        *(f"    {note}" + r"\par" for note in notes),
        r"  \end{minipage}",
    ]
    packages = [r"\usepackage[T1]{fontenc}", r"\usepackage{booktabs}"]
    packages += [r"\usepackage{xcolor}"] * paper + [r"\usepackage{array}"] * (_LINES in columns)
    lines = [
        f"% Needs {', '.join(packages)}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_text(table.title)}}}",
        rf"  \label{{tab:{table.name}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        "    " + " & ".join(map(_text, table.columns)) + r" \\",
        r"    \midrule",
        *("    " + " & ".join(map(cell, row)) + r" \\" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *(below if notes else ()),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
