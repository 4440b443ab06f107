#!/usr/bin/env bash
# Everything that is tested: the C++ tests and the exporter's grid through CTest, then the Python and command-line tests.
set -euo pipefail
. "$(dirname "$0")/setup.sh"
install_models_for_tests

build release all

say "C++ tests, and every case of the exporter's grid bit for bit"
ctest --preset release --output-on-failure

say "exporter and command-line tests"
MHA_TOOL=$root/build/release/mha "$venv/bin/python" -m pytest tests -q -p no:cacheprovider
