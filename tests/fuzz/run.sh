#!/usr/bin/env bash
# Runs each fuzz target for a minute, or those that are named: tests/fuzz/run.sh [TARGET...]
# FUZZ_SECONDS sets another time. Exit status 0 means that no target found a fault.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

readonly SECONDS_EACH=${FUZZ_SECONDS:-60}

command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
# libFuzzer needs compiler flags that only nightly takes.
rustup toolchain list | grep -q '^nightly' || rustup toolchain install nightly --profile minimal

if (($# > 0)); then
    targets=("$@")
else
    mapfile -t targets < <(cargo +nightly fuzz list --fuzz-dir .)
fi

failed=()
for target in "${targets[@]}"; do
    printf '\n== %s: %s s\n' "$target" "$SECONDS_EACH"
    # What is new goes to found/, so that the committed corpus only grows on purpose.
    mkdir -p "found/$target"
    cargo +nightly fuzz run --fuzz-dir . "$target" "found/$target" "corpus/$target" -- \
        -max_total_time="$SECONDS_EACH" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 || failed+=("$target")
done

if ((${#failed[@]})); then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
printf '\n%d targets, %s s each: no fault found\n' "${#targets[@]}" "$SECONDS_EACH"
