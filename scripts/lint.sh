#!/usr/bin/env bash
# Format of all C++ files and lint of the library's and the tool's, as CI checks them. Needs a configured build/release.
#
#   MHA_LINT_BASE   lint only the sources that differ from this commit (default: all)
set -euo pipefail
. "$(dirname "$0")/setup.sh"

for tool in clang-format clang-tidy; do
  if ! command -v "$tool" >/dev/null; then
    can_be_root || die "$tool is needed"
    say "installing Debian package: $tool"
    as_root apt-get update -qq
    as_root apt-get install -y -qq --no-install-recommends "$tool" >/dev/null
  fi
done

say "format: clang-format"
git ls-files '*.h' '*.cpp' | xargs clang-format --dry-run --Werror

say "lint: clang-tidy"
sources=$(if [ -n "${MHA_LINT_BASE:-}" ]; then git diff --name-only --diff-filter=d "$MHA_LINT_BASE"; else git ls-files; fi |
  grep -E '^src/.*\.cpp$' || true)
[ -n "$sources" ] || { echo "nothing to lint"; exit 0; }
# The precompiled header and OpenMP are GCC's.
database=$(mktemp -d)
trap 'rm -rf "$database"' EXIT
sed -E 's/-Winvalid-pch -include [^ ]*cmake_pch\.hxx//g; s/ -fopenmp\b//g; s/-W(no-)?(restrict|stringop-overflow|array-bounds|error)\b//g' \
  build/release/compile_commands.json >"$database/compile_commands.json"
echo "$sources" | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$database" 2>/dev/null
echo "$(echo "$sources" | wc -l) files clean"
