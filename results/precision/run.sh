#!/usr/bin/env bash
# AMCL on CIFAR-10 in float32 and in bf16-mixed, three seeds, at a scale that two cores train even where bf16 is
# emulated. Needs CIFAR-10 in TORCHMCL_DATA. Runs go to the folder given, results beside this file: run.sh RUNS
set -euo pipefail
runs=${1:?folder for the runs}
here=$(cd "$(dirname "$0")" && pwd)
for seed in 0 1 2; do
  for precision in 32 bf16-mixed; do
    out="$runs/$precision-$seed"
    [ -e "$out/metrics.json" ] || torchmcl train --method amcl --network simple_cnn --width 8 --data cifar10 \
      --data.limit 6000 --data.validation 0 --members 2 --epochs 10 --preset light --precision "$precision" \
      --seed "$seed" --out "$out"
  done
done
python "$here/compare.py" "$runs"
