#!/usr/bin/env bash
# Usage: bash scripts/iwslt14/prepare.sh [--archive de-en.tgz | --from-tokenized DIR]
#                                        [--output DIR] [--merges N] [--jobs N]
#                                        [--allow-nonstandard]
#
# IWSLT14 De-En from the raw archive to data for fairseq, in data/iwslt14: clean, tokenise,
# lower-case, split, joint BPE of 10,000 merges, joined dictionary. Verifies the numbers of pairs,
# and that valid and test are the standard files. What is finished is not done again.
#
#   --archive FILE         the archive; without it, it is downloaded to data/ (20 MB). Needs Perl
#   --from-tokenized DIR   train, valid and test as .de and .en, tokenised and lower-cased already,
#                          instead of an archive
#   --output DIR           where the data go (data/iwslt14)
#   --merges N             merges of the BPE (10000)
#   --jobs N               processes (one a core)
#   --allow-nonstandard    go on with other data than the standard, and mark them as such
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

address=http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz

help_if_asked "$@"
if [[ " $* " != *" --archive"[\ =]* && " $* " != *" --from-tokenized"[\ =]* ]]; then
    use_environment
    download "$address" data/de-en.tgz
    set -- --archive "$PWD/data/de-en.tgz" "$@"
fi
call_prepare iwslt14 "$@"
