"""What each kind of task is scored by: BLEU, perplexity, accuracy, F1."""

from dataclasses import dataclass

__all__ = ["Metric", "metric_of"]


@dataclass(frozen=True)
class Metric:
    """A score.

    Attributes:
        key: what score.json and the log of a validation call it.
        name: in headings.
        datasets: those that the paper reports it of, by a word in the names of their data; the
            first stands for data of other names.
        lower: whether a lower one is better.
    """

    key: str
    name: str
    datasets: dict[str, str]
    lower: bool = False

    def of_paper(self, data: str) -> list[str]:
        """Return the paper's data sets to show beside runs on data of this name."""
        known = [name for word, name in self.datasets.items() if word in data.lower()]
        return known or list(self.datasets.values())[:1]

    def worse(self, less: str, more: str) -> str:
        """Return a difference's name that is positive where ``more`` has the worse score."""
        one, other = (more, less) if self.lower else (less, more)
        return f"{self.name}, {one} - {other}"


_METRICS = {
    "translation": Metric("bleu", "BLEU", {"iwslt": "IWSLT14", "wmt": "WMT16"}),
    "language_modeling": Metric(
        "ppl", "PPL", {"ptb": "PTB", "wikitext": "WikiText-103"}, lower=True
    ),
    "text_classification": Metric(
        "accuracy",
        "accuracy, %",
        {"imdb": "IMDB", "sogou": "Sogou", "dbpedia": "DBPedia", "yelp": "Yelp"},
    ),
    "sequence_tagging": Metric("f1", "F1", {"conll": "CoNLL", "resume": "Resume"}),
}


def metric_of(task: str) -> Metric:
    """Return what a task is scored by; BLEU where that is not known."""
    return next(
        (metric for name, metric in _METRICS.items() if task.startswith(name)),
        _METRICS["translation"],
    )
