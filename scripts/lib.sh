# Sourced by the other scripts: finds Python and a C++20 compiler, or says in one line what is missing.

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# find_python: sets PYTHON to an interpreter of 3.11 or newer that can make virtual environments.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      PYTHON=$(command -v "$candidate")
      "$PYTHON" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
        die "$PYTHON cannot make virtual environments: install its venv package (Debian: python3-venv)"
      return
    fi
  done
  die "Python 3.11 or newer is missing: install it, or set PYTHON to it"
}

# find_compiler: a compiler that really compiles C++20; sets and exports CXX.
find_compiler() {
  local candidate scratch
  scratch=$(mktemp -d)
  cat >"$scratch/probe.cpp" <<'CPP'
#include <bit>
#include <concepts>
#include <span>
template <std::integral T> constexpr int width(T value) { return std::bit_width(unsigned(value)); }
int main() {
  int data[] = {1, 2, 3};
  return width(int(std::span<int>(data).size())) == 2 ? 0 : 1;
}
CPP
  for candidate in ${CXX:-} c++ g++ clang++; do
    if command -v "$candidate" >/dev/null 2>&1 &&
      "$candidate" -std=c++20 -o "$scratch/probe" "$scratch/probe.cpp" >/dev/null 2>&1; then
      rm -rf "$scratch"
      CXX=$(command -v "$candidate")
      export CXX
      return
    fi
  done
  rm -rf "$scratch"
  die "a C++20 compiler is missing: install g++ 11 or clang++ 14 or newer, or set CXX to one"
}

# make_venv DIR: a virtual environment there; one that is broken or too old is made anew.
make_venv() {
  if ! "$1/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    find_python
    echo "making $1 with $("$PYTHON" --version)"
    rm -rf "$1"
    "$PYTHON" -m venv "$1"
  fi
}

# quietly COMMAND...: its output only if it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "failed: $*"
  fi
  rm -f "$log"
}

# install_for_development DIR: the package, editable, with its development extras. Native code is
# built again only when its sources have changed since the last time, and then it alone: the two
# sums of the stamp are of what says what to install, and of what is compiled.
install_for_development() {
  local stamp="$1/forestcoll-built" wanted sources before=() start=$SECONDS
  wanted=$(cksum <pyproject.toml)
  sources=$(cat CMakeLists.txt $(find forestcoll -name '*.cpp' -o -name '*.hpp' | sort) | cksum)
  [ -f "$stamp" ] && mapfile -t before <"$stamp"
  if [ "${before[0]:-}" = "$wanted" ] && is_editable "$1"; then
    [ "${before[1]:-}" = "$sources" ] && return
    echo "C++ has changed: compiling it"
    find_compiler
    install_editable "$1" --no-deps .
  else
    echo "installing forestcoll for development: packages, and compiling C++ (minutes the first time)"
    find_compiler
    # Not in pip's own build environment: its path changes every time, and all would be compiled anew.
    local tools
    mapfile -t tools < <("$1/bin/python" - <<'PY'
import shutil, tomllib
with open("pyproject.toml", "rb") as file:
    tools = tomllib.load(file)["build-system"]["requires"]
print(*tools, *(tool for tool in ("cmake", "ninja") if shutil.which(tool) is None), sep="\n")
PY
    )
    quietly "$1/bin/python" -m pip install --disable-pip-version-check "${tools[@]}"
    install_editable "$1" '.[dev]'
  fi
  printf '%s\n' "$wanted" "$sources" >"$stamp"
  echo "done in $((SECONDS - start)) s"
}

# is_editable DIR: whether the package is installed there, as a link to these sources.
is_editable() {
  "$1/bin/python" - <<'PY'
import json, sys
from importlib.metadata import PackageNotFoundError, distribution
try:
    url = json.loads(distribution("forestcoll").read_text("direct_url.json") or "{}")
except PackageNotFoundError:
    sys.exit(1)
sys.exit(not url.get("dir_info", {}).get("editable"))
PY
}

# install_editable DIR [OPTIONS] WHAT
install_editable() {
  quietly env PATH="$PWD/$1/bin:$PATH" "$1/bin/python" -m pip install --disable-pip-version-check \
    --no-build-isolation --editable "${@: -1}" "${@:2:$#-2}"
}
