"""Findings of `rbn doctor`: what is in order, what to know, and problems."""

__all__ = ["Findings"]


class Findings:
    """Prints findings, keeps them, and counts the problems among them."""

    def __init__(self, to_stderr: bool = False) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, soft_wrap=True, stderr=to_stderr)
        self.records: list[dict[str, str]] = []

    @property
    def problems(self) -> int:
        """Number of problems."""
        return sum(record["finding"] == "problem" for record in self.records)

    def good(self, text: str) -> None:
        """Tell what is in order."""
        self._print("ok", "green", text)

    def note(self, text: str) -> None:
        """Tell what to know."""
        self._print("note", "yellow", text)

    def bad(self, text: str) -> None:
        """Tell what is wrong."""
        self._print("problem", "red", text)

    def _print(self, kind: str, colour: str, text: str) -> None:
        from rich.text import Text

        # Names out of a file may hold what a terminal would obey.
        plain = "".join(it if it.isprintable() else "\N{REPLACEMENT CHARACTER}" for it in text)
        self._console.print(Text.assemble((f"{kind:7}", colour), " ", plain))
        self.records.append({"finding": kind, "text": plain})
