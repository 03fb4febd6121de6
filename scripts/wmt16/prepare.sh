#!/usr/bin/env bash
# Usage: bash scripts/wmt16/prepare.sh --archive wmt16_en_de.tar.gz [--output DIR] [--jobs N]
#                                      [--allow-nonstandard]
#
# WMT16 En-De to data for fairseq, in data/wmt16: valid is newstest2013, test is newstest2014.
# Verifies the numbers of pairs. What is finished is not done again.
#
#   --archive FILE   the data that Google prepared (BPE of 32,000 merges), which fairseq's own
#                    examples use. Download it with a browser:
#                    https://drive.google.com/uc?export=download&id=0B_bZck-ksdkpM25jRUN2X2UxMm8
#   --output DIR     where the data go (data/wmt16)
#   --jobs N         processes (one a core)
#   --allow-nonstandard   go on with other data than the standard, and mark them as such
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

help_if_asked "$@"
call_prepare wmt16 "$@"
