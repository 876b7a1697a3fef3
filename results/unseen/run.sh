#!/usr/bin/env bash
# Telling SVHN from CIFAR-10, and not answering when unsure: IE, CMCL and AMCL of the same small network, three seeds, at
# a scale that two cores train. Needs both sets in TORCHMCL_DATA. Runs go to the folder given and continue where they
# were stopped, results beside this file: run.sh RUNS
# Further options change the trainings (run.sh RUNS --epochs 1 --data.limit 300); results then go to RUNS, too.
set -euo pipefail
runs=${1:?folder for the runs}
shift
here=$(cd "$(dirname "$0")" && pwd)
out=$([ $# -eq 0 ] && echo "$here" || echo "$runs")
for seed in 0 1 2; do
  for method in ie cmcl amcl; do
    run="$runs/$method-$seed"
    if [ ! -e "$run/metrics.json" ]; then
      if [ -e "$run/config.yaml" ]; then
        torchmcl train --resume "$run"
      else
        torchmcl train --method "$method" --k 1 --network simple_cnn --width 16 --data cifar10 --data.limit 10000 \
          --members 5 --epochs 12 --drop-every 4 --preset light --precision 32 --seed "$seed" --out "$run" "$@"
      fi
    fi
    [ -e "$run/unseen.json" ] && continue
    torchmcl calibrate "$run" --coverage 0.95 --json > "$run/calibration.json"
    torchmcl evaluate "$run" --data cifar10 --unseen svhn --json > "$run/unseen.json.part"
    mv "$run/unseen.json.part" "$run/unseen.json"
  done
done
python "$here/table.py" "$runs" "$out"
