#!/usr/bin/env bash
# The lesson's case, (32, 50, 512) with 8 heads: exported from Python, computed again in C++ with the weights of the
# module's TorchScript archive, compared bit for bit.
set -euo pipefail
. "$(dirname "$0")/setup.sh"

build release mha_tool

cases=build/demo
mkdir -p "$cases"
say "exporting what Python computes: eval, and train with dropout, a causal mask and gradients"
"$venv/bin/python" scripts/export_reference.py --force --also torchscript --out "$cases/lesson-eval.safetensors"
"$venv/bin/python" scripts/export_reference.py --force --also torchscript --mode train --mask causal \
  --out "$cases/lesson-train.safetensors"

for case in lesson-eval lesson-train; do
  say "computing it again in C++, weights from the traced TorchScript archive: mha verify $case.safetensors"
  build/release/mha verify "$cases/$case.safetensors" --weights "$cases/$case.torchscript.pt"
done
