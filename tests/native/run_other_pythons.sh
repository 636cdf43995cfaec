#!/usr/bin/env bash
# Builds the extension for each other CPython that is here, warnings as errors, and runs the torch-free tests on it.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

find_python() { # find_python 3.12: a working interpreter of that version on the PATH or in pyenv, or nothing
    local found
    for found in "$(command -v "python$1" || true)" "$(command -v pyenv >/dev/null && ls -d "$(pyenv root)"/versions/"$1".*/bin/python 2>/dev/null | tail -1 || true)"; do
        if [ -n "$found" ] && "$found" -c 'import sysconfig, os; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; then
            echo "$found"
            return
        fi
    done
}

for version in 3.11 3.12 3.13; do
    python=$(find_python "$version")
    if [ -z "$python" ]; then
        echo "python $version: not here"
        continue
    fi
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    library=$folder/_native_$version.so
    ${CC:-cc} -std=c11 -O2 -g -fPIC -shared -fvisibility=hidden -fexceptions -Wall -Wextra -Werror -UNDEBUG \
        -I"$include" -Isrc/framefuse/native src/framefuse/native/*.c -o "$library" -ldl -lm -lpthread
    for test in tests/native/torch_free/test_*.py; do
        FRAMEFUSE_NATIVE=$library "$python" -X faulthandler -X dev "$test" -q 2>"$folder/log" || { cat "$folder/log"; echo "python $version: $test failed"; exit 1; }
    done
    echo "python $version: built without warnings, torch-free tests passed"
done
