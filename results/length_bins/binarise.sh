#!/usr/bin/env bash
# Usage: bash results/length_bins/binarise.sh CODE BIN OTHER
#
# Makes OTHER/NAME/bin of the sets that other.py wrote to OTHER, with the pieces (CODE) and the
# dictionary of the training data BIN, whose train set goes in as well.
set -euo pipefail
code=$1 bin=$2 other=$3
for name in joined4 joined8 longest tatoeba news; do
    here=$other/$name
    for lang in de en; do
        subword-nmt apply-bpe -c "$code" <"$here/valid.$lang" >"$here/pieces.$lang"
    done
    rm -rf "${here:?}/bin"
    fairseq-preprocess -s de -t en --validpref "$here/pieces" --srcdict "$bin/dict.de.txt" \
        --joined-dictionary --destdir "$here/bin"
    cp "$bin"/train.* "$here/bin"
done
