#!/usr/bin/env bash
# Fuzzes the readers: builds every target with Clang, libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, seeds it
# with the corpus and with PyTorch's files, runs it and tells what came of it. Inputs found stay in build/fuzz/inputs.
#
#   scripts/fuzz.sh SECONDS [TARGET...]     SECONDS for each target, two at a time
#
# Exit status: 0 nothing found, 1 something found (build/fuzz/findings/TARGET), 2 cannot run.
set -euo pipefail
. "$(dirname "$0")/setup.sh"

[[ "${1:-}" =~ ^[1-9][0-9]*$ ]] || die "usage: scripts/fuzz.sh SECONDS [TARGET...]"
seconds=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(pickle archive legacy safetensors index)
command -v clang++-14 >/dev/null || die "clang++-14 is needed. Debian: apt-get install clang-14 libclang-rt-14-dev"

build fuzz mha_fuzz
out=$root/build/fuzz
say "seeds: the corpus and PyTorch's files"
"$venv/bin/python" tests/corpus/make_corpus.py "$out/corpus"
"$venv/bin/python" tests/weights/make_torch_files.py "$out/torch_files"
"$venv/bin/python" tests/fuzz/make_seeds.py "$out/inputs" "$out/corpus" "$out/torch_files"

run_target() {
  local target=$1
  mkdir -p "$out/inputs/$target" "$out/findings/$target" "$out/logs"
  "$out/tests/fuzz/mha_fuzz_$target" "$out/inputs/$target" -dict="tests/fuzz/$target.dict" -max_total_time="$seconds" \
    -max_len=65536 -timeout=25 -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$out/findings/$target/" \
    >"$out/logs/$target.log" 2>&1
}

say "fuzzing, $seconds s a target: ${targets[*]}"
found=0
for ((i = 0; i < ${#targets[@]}; i += 2)); do
  running=()
  for target in "${targets[@]:i:2}"; do
    run_target "$target" &
    running+=($!)
  done
  for process in "${running[@]}"; do
    wait "$process" || found=1
  done
done

say "results (logs in build/fuzz/logs)"
printf '%-12s %12s %10s %8s %8s %8s %10s\n' target executions 'a second' cov ft inputs findings
for target in "${targets[@]}"; do
  log=$out/logs/$target.log
  progress=$(grep -E '^#[0-9]+.* cov: ' "$log" | tail -1)
  number() { sed -nE "s/.*$1:? +([0-9]+).*/\1/p" <<<"$progress"; }
  stat() { sed -nE "s/^stat::$1: +([0-9]+)/\1/p" "$log" | tail -1; }
  printf '%-12s %12s %10s %8s %8s %8s %10s\n' "$target" "$(stat number_of_executed_units)" \
    "$(stat average_exec_per_sec)" "$(number cov)" "$(number ft)" "$(find "$out/inputs/$target" -type f | wc -l)" \
    "$(find "$out/findings/$target" -type f | wc -l)"
done
exit "$found"
