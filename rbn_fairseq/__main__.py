"""``python -m rbn_fairseq`` is ``rbn``."""

from rbn_fairseq.cli import main

if __name__ == "__main__":
    main()
