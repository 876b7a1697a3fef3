#!/usr/bin/env bash
# The commands of docs/tutorial.md, as they stand, into output.txt; TORCHMCL_DATA names a folder with Tiny-ImageNet.
set -euo pipefail
out=$(realpath "$(dirname "$0")")/output.txt
examples=$(realpath "$(dirname "$0")/../../examples")
cd "$(mktemp -d)" && ln -s "$examples" examples
export XDG_CACHE_HOME=$PWD/cache  # empty, so that the times include the computation of features
grep -oP '^(torchmcl (train|evaluate|calibrate|predict|export)|python) .*' "$(dirname "$out")/../../docs/tutorial.md" |
  while read -r line; do
    echo "\$ $line"
    started=$SECONDS
    eval "$line" < /dev/null 2>&1
    [[ $line != "torchmcl train"* ]] || echo "# $((SECONDS - started)) s"
  done | sed "s|$XDG_CACHE_HOME|~/.cache|" | tee "$out"
