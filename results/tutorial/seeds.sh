#!/usr/bin/env bash
# The three ensembles of docs/tutorial.md with several seeds, which also choose the test images, into seeds.txt;
# TORCHMCL_DATA names a folder with Tiny-ImageNet.
set -euo pipefail
out=$(realpath "$(dirname "$0")")/seeds.txt
tutorial=$(dirname "$out")/../../docs/tutorial.md
examples=$(realpath "$(dirname "$0")/../../examples")
cd "$(mktemp -d)" && ln -s "$examples" examples
eval "$(grep '^python examples/image_folder.py photos' "$tutorial")" > /dev/null
grep '^torchmcl train --data' "$tutorial" | while read -r line; do
  for seed in 0 1 2; do
    eval "${line% --quiet} --quiet --seed $seed" < /dev/null
    mv "$(grep -oP '(?<=--out )\S+' <<< "$line")" "$(grep -oP '(?<=--out runs/)\S+' <<< "$line")-$seed"
  done
done
torchmcl evaluate mine-? ordinary-? scratch-? | tee "$out"
