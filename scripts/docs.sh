#!/usr/bin/env bash
# Usage: bash scripts/docs.sh
#
# Makes .venv if there is none, and builds the documentation as a site: site/html/index.html, which
# needs neither server nor network. In it are the Markdown files that git tracks, the notebook of
# examples/ and an example of `rbn report`. A link to a page or heading that is not there is an
# error. Needs Python 3.11 or 3.12; PYTHON=python3.12 chooses one.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

help_if_asked "$@"
(($# == 0)) || die "unknown argument $1; --help tells more"

make_venv docs
rm -rf site
mkdir -p site/source
# As they lie in the repository, so that links hold in both places; what runs left is not linked.
git ls-files -z '*.md' LICENSE docs examples results | grep -zvE '/(runs|rows)/' |
    xargs -0 cp --parents --target-directory site/source
jupyter nbconvert --log-level ERROR --to markdown --output-dir site/source/examples examples/*.ipynb
# Links to a notebook lead to its page.
find site/source -name '*.md' -exec sed -i 's/\.ipynb)/.md)/g' {} +
rbn report results/ladder/runs/* --output site/source/report
zensical build --strict
say "open site/html/index.html"
