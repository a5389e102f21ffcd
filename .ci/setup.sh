#!/usr/bin/env bash
# Makes the virtual environment that the Makefile's targets use: .ci/setup.sh <venv>
# Says what is missing on this machine and how to get it; installs nothing outside <venv>.
set -euo pipefail

venv=$1
here=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    printf '\npylog cannot be set up: %s\n' "$1" >&2
    shift
    printf '    %s\n' "$@" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14 python; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    fail "Python 3.11 or later is needed; python3 on PATH is $(python3 --version 2>/dev/null || echo missing)." \
        'Debian, Ubuntu:  sudo apt install python3 python3-venv' \
        'macOS:           brew install python@3.12' \
        'conda:           conda create -n pylog python=3.12 openjdk=17 make && conda activate pylog' \
        'elsewhere:       PYTHON=/path/to/python3.12 make …'
}

check_java() {
    local java=java version
    if [[ -n ${JAVA_HOME:-} && -x $JAVA_HOME/bin/java ]]; then
        java=$JAVA_HOME/bin/java
    fi
    version=$("$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1 || true)
    if [[ -z $version ]] || ((version < 17)); then
        fail "Java 17 or later is needed by Spark and by the bundled ZooKeeper; found ${version:-none}." \
            'Debian, Ubuntu:  sudo apt install openjdk-17-jre-headless' \
            'macOS:           brew install openjdk@17 && export JAVA_HOME="$(brew --prefix openjdk@17)"' \
            'conda:           conda install openjdk=17' \
            'then JAVA_HOME names it, or java is on PATH.'
    fi
}

python=$(find_python)
check_java

if ! "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    echo "making $venv with $python ($("$python" --version))" >&2
    rm -rf "$venv"
    if ! message=$("$python" -m venv "$venv" 2>&1); then
        rm -rf "$venv"
        fail "$python cannot make a virtual environment: ${message%%$'\n'*}" \
            'Debian, Ubuntu:  sudo apt install python3-venv' \
            'macOS, conda:    their Python has it; PYTHON=/path/to/it make … chooses one'
    fi
fi

echo 'installing what pylog, its tests and its demo need (the first time about 600 MB, most of it Spark)' >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$here[dev]"
touch "$venv/.ready"
