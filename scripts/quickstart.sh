#!/usr/bin/env bash
# Usage: bash scripts/quickstart.sh [--data PREFIX] [--source-lang de] [--target-lang en]
#                                   [--output DIR] [--epochs N] [--jobs N]
#
# Makes .venv if there is none, then trains small Transformers with layer norm, batch norm and
# RBN on real text, measures TID at every epoch, translates, scores, and writes a report.
# 9 minutes on 2 cores the first time, and 2 to install; what is finished is not done again, and what was
# cut off goes on where it stopped. Needs Python 3.11 or 3.12.
#
#   --data PREFIX   your own text, not tokenised, one sentence a line: PREFIX/train.de,
#                   PREFIX/train.en and so on for valid and test (or PREFIX.train.de ...).
#                   Without it: German-English LibreOffice help from two Debian packages, which
#                   are downloaded (5 MB) and unpacked, not installed; needs apt-get.
#   --source-lang, --target-lang   the files' endings (de, en)
#   --output DIR    where everything goes (runs/quickstart; with --data, runs/quickstart-NAME)
#   --epochs N      epochs to train (5)
#   --jobs N        trainings at a time, one thread each (one a core)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

help_if_asked "$@"
make_venv ""
cd "$caller"
exec rbn quickstart "$@"
