"""``python -m rbn_fairseq`` is ``rbn``."""

from rbn_fairseq.cli import command

if __name__ == "__main__":
    command()
