#!/usr/bin/env bash
# Runs programs of other projects, unmodified and from their registries, on VFs of a service.
#
# Usage: run.sh [NAME...]
#   NAME  mooncake, fabtests, rdma-core, sideway, ibverbs or rrddmma; all of them by default
# Variables:
#   VHCA_PROGRAMS=FOLDER  keep sources and builds there; by default in ~/.cache/vhca-programs
# Sources come from PyPI, crates.io and GitHub. Needs what `tests/run.sh` installs, and on Debian besides:
#   autoconf automake cmake cython3 git libclang-dev libfabric-dev libibverbs-dev libnl-3-dev libnl-route-3-dev
#   librdmacm-dev libtool libudev-dev ninja-build pkg-config python3-dev python3-venv
# Exit status 0 means that each test passed, was skipped by its own project, or is listed below with the reason.
set -euo pipefail

readonly NAMES=(mooncake fabtests rdma-core sideway ibverbs rrddmma)
names=("${@:-${NAMES[@]}}")
for name in "${names[@]}"; do
    if [[ " ${NAMES[*]} " != *" $name "* ]]; then
        printf 'run.sh: no program called "%s"; there are: %s\n' "$name" "${NAMES[*]}" >&2
        exit 2
    fi
done

readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$(cd "$HERE/../.." && pwd)
readonly FOLDER=$(realpath -m "${VHCA_PROGRAMS:-${XDG_CACHE_HOME:-$HOME/.cache}/vhca-programs}")
readonly BUILT=${CARGO_TARGET_DIR:-$ROOT/target}/release
readonly LIBFABRIC=v1.17.0 RDMA_CORE=v64.0 MOONCAKE=0.3.13.post1

# Failures that are expected, by program: the name of the test, and the reason.
readonly -A EXPECTED=(
    # libfabric's verbs provider has no reliable datagrams by itself; other tests of them skip, this one does not ask.
    ['fabtests fi_multi_mr -e rdm -V -p "verbs"']='no rdm endpoint'
    # No VF may use a privileged Q_Key: the PF context alone has it.
    ['rdma-core test_create_ud_qp_with_privileged_qkey']='a VF has no privileged Q_Key'
    # The test takes a GID of RoCE.
    ['sideway test_atomic']='needs RoCE'
    # The example takes the GID with index 1, which RoCE has.
    ['ibverbs loopback']='needs RoCE'
)

failed=()

# result PROGRAM TEST STATUS: remembers a test that failed without a reason.
result() {
    local reason=${EXPECTED["$1 $2"]:-}
    if (($3 == 0)); then
        printf '%s: %s: passed\n' "$1" "$2"
    elif [[ $reason ]]; then
        printf '%s: %s: fails as expected: %s\n' "$1" "$2" "$reason"
    else
        printf '%s: %s: FAILED\n' "$1" "$2"
        failed+=("$1: $2")
    fi
}

# check PROGRAM TEST COMMAND...: runs a command, whose status is the test's, with its output in a log.
check() {
    local log status=0
    log=$FOLDER/$1-${2//[^a-z0-9_]/-}.log
    timeout 600 "${@:3}" >"$log" 2>&1 || status=$?
    result "$1" "$2" "$status"
    ((status == 0)) || tail -n 5 "$log" | sed 's/^/    /'
}

# source_of NAME TAG REPOSITORY: clones a tag once.
source_of() {
    [[ -d $FOLDER/$1 ]] || git clone --quiet --depth 1 --branch "$2" "https://github.com/$3" "$FOLDER/$1"
}

# crate NAME VERSION: unpacks a crate once.
crate() {
    [[ -d $FOLDER/$1-$2 ]] ||
        curl --silent --show-error --fail --location "https://static.crates.io/crates/$1/$1-$2.crate" |
        tar -xz -C "$FOLDER"
}

mooncake() {
    local python=$FOLDER/python/bin/python
    [[ -x $python ]] || python3 -m venv "$FOLDER/python"
    "$python" -m pip install --quiet "mooncake-transfer-engine-non-cuda==$MOONCAKE" numpy
    rm -f "$FOLDER/mooncake-segment"
    vhca run --node H1-1/1 -- "$python" "$HERE/transfer.py" target "$FOLDER/mooncake-segment" \
        >"$FOLDER/mooncake-target.log" 2>&1 &
    check mooncake 'reads and writes 1 MiB' \
        vhca run --node H2-1/1 -- "$python" "$HERE/transfer.py" initiator "$FOLDER/mooncake-segment"
    local status=0
    wait "$!" || status=$?
    result mooncake 'has the initiator write' "$status"
    check mooncake 'does so by the device' grep 'RDMA device: vhca' "$FOLDER/mooncake-target.log"
}

fabtests() {
    source_of libfabric "$LIBFABRIC" ofiwg/libfabric
    local built=$FOLDER/fabtests provider log name status failures
    [[ -x $built/bin/runfabtests.sh ]] || (
        cd "$FOLDER/libfabric/fabtests"
        ./autogen.sh && ./configure --prefix="$built" && make -j "$(nproc)" install
    ) >"$FOLDER/fabtests-build.log" 2>&1
    # The script starts programs on other hosts by ssh; here they are VFs.
    install -D "$HERE/ssh.sh" "$FOLDER/bin/ssh"
    for provider in verbs 'verbs;ofi_rxm'; do
        log=$FOLDER/fabtests-${provider//[^a-z_]/-}.log
        status=0 failures=0
        (
            cd "$FOLDER"
            PATH=$FOLDER/bin:$PATH "$built/bin/runfabtests.sh" -vv -t quick -T 60 -p "$built/bin" \
                "$provider" 127.77.3.1 127.77.1.1
        ) >"$log" 2>&1 || status=$?
        while IFS=$'\t' read -r name; do
            result fabtests "$name" 1
            failures=$((failures + 1))
        done < <(grep -E '^- name:|^  result:' "$log" | paste - - | sed -n 's/^- name: *\(.*[^ \t]\)[ \t]*result: Fail$/\1/p')
        printf 'fabtests %s: ' "$provider"
        grep -E '^# Total' "$log" | tr -s '# \n' ' '
        echo
        # A failure that names no test is the script's own.
        ((status == 0 || failures)) || result fabtests "$provider" "$status"
        grep -q '^# Total Pass' "$log" || result fabtests "$provider" 1
    done
}

rdma_core() {
    source_of rdma-core "$RDMA_CORE" linux-rdma/rdma-core
    local source=$FOLDER/rdma-core log=$FOLDER/rdma-core.log name status=0 failures=0
    [[ -f $source/build/build.ninja ]] ||
        cmake -S "$source" -B "$source/build" -G Ninja -DIN_PLACE=1 -DNO_MAN_PAGES=1 -DCMAKE_BUILD_TYPE=Release \
            -DPython_EXECUTABLE=/usr/bin/python3 -DPython3_EXECUTABLE=/usr/bin/python3 \
            -DPYTHON_EXECUTABLE=/usr/bin/python3 >"$FOLDER/rdma-core-build.log" 2>&1
    ninja -C "$source/build" >>"$FOLDER/rdma-core-build.log" 2>&1
    PYTHONPATH=$source/build/python timeout 600 vhca run --node H1-1 -- \
        /usr/bin/python3 "$source/tests/run_tests.py" -v --dev vhca1 >"$log" 2>&1 || status=$?
    while read -r name; do
        result rdma-core "$name" 1
        failures=$((failures + 1))
    done < <(sed -n 's/^\(ERROR\|FAIL\): \([a-z0-9_]*\) .*/\2/p' "$log")
    printf 'rdma-core: '
    tail -n 3 "$log" | tr -s '\n' ' '
    echo
    ((status == 0 || failures)) || result rdma-core run_tests.py "$status"
    grep -q '^Ran ' "$log" || result rdma-core run_tests.py 1
}

sideway() {
    crate sideway 0.4.3
    cd "$FOLDER/sideway-0.4.3"
    cargo test --quiet --no-run 2>"$FOLDER/sideway-build.log"
    local test
    check sideway 'unit tests' vhca run --node H1-1 -- cargo test --quiet --lib
    for test in test_atomic test_cq test_mr_and_cq test_post_send test_qp; do
        check sideway "$test" vhca run --node H1-1 -- cargo test --quiet --test "$test"
    done
}

ibverbs() {
    crate ibverbs 0.9.2
    cd "$FOLDER/ibverbs-0.9.2"
    cargo build --quiet --examples 2>"$FOLDER/ibverbs-build.log"
    check ibverbs tests vhca run --node H1-1 -- cargo test --quiet
    check ibverbs loopback vhca run --node H1-1 -- target/debug/examples/loopback
}

rrddmma() {
    crate rrddmma 0.7.3
    cd "$FOLDER/rrddmma-0.7.3"
    local example examples=(local_rc_sendrecv local_ud_sendrecv loopback wr)
    cargo build --quiet "${examples[@]/#/--example=}" 2>"$FOLDER/rrddmma-build.log"
    for example in "${examples[@]}"; do
        # Its examples name their device.
        check rrddmma "$example" vhca run --device mlx5_0 --node H1-1 -- "target/debug/examples/$example"
    done
}

mkdir -p "$FOLDER"
(cd "$ROOT" && cargo build --release --locked --quiet -p vhca-command -p vhca-umad)
runtime=$(mktemp -d)
export PATH=$BUILT:$PATH XDG_RUNTIME_DIR=$runtime
unset VHCA_CONTROL CARGO_TARGET_DIR
trap 'vhca stop >/dev/null || true; rm -r "$runtime"' EXIT
vhca serve --verbs >"$FOLDER/serve.log" 2>&1 &
vhca show vfs --wait-up >/dev/null

for name in "${names[@]}"; do
    printf '\n== %s\n' "$name"
    "${name/-/_}"
done
if ((${#failed[@]})); then
    printf '\nfailed:\n'
    printf '  %s\n' "${failed[@]}"
    exit 1
fi
printf '\nall as expected\n'
