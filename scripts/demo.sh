#!/usr/bin/env bash
# The lesson's case, (32, 50, 512) with 8 heads: exported from Python, computed again in C++, compared bit for bit.
set -euo pipefail
. "$(dirname "$0")/setup.sh"

build release mha_tool

cases=build/demo
mkdir -p "$cases"
say "exporting what Python computes: eval, and train with dropout, a causal mask and gradients"
"$venv/bin/python" scripts/export_reference.py --force --out "$cases/lesson-eval.safetensors"
"$venv/bin/python" scripts/export_reference.py --force --mode train --mask causal --out "$cases/lesson-train.safetensors"

say "computing it again in C++: mha verify"
build/release/mha verify "$cases/lesson-eval.safetensors"
echo
build/release/mha verify "$cases/lesson-train.safetensors"
