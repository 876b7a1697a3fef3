#!/usr/bin/env bash
# The paper's confidence figure (section 3.1, figure 2): dog and airplane of CIFAR-10, simple CNN, M = 2, K = 1.
# Needs CIFAR-10 in TORCHMCL_DATA. Runs go to the folder given, results beside this file: run.sh RUNS
set -euo pipefail
runs=${1:?folder for the runs}
here=$(cd "$(dirname "$0")" && pwd)
for seed in 0 1 2; do
  for method in cmcl amcl; do
    [ -e "$runs/$method-$seed/metrics.json" ] || torchmcl train --method "$method" --network simple_cnn --data cifar10 \
      --data.classes dog,airplane --data.validation 0 --members 2 --k 1 --epochs 12 --preset light \
      --seed "$seed" --out "$runs/$method-$seed"
  done
done
python "$here/histogram.py" "$runs"
