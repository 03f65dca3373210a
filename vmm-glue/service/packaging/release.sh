#!/usr/bin/env bash
# Makes the files of a release: an archive with a static command, the Debian package, and their checksums.
#
# Usage: release.sh [--output FOLDER]
#   --output FOLDER  leave the files there; by default in target/release-files
# Prints the paths of the files.
set -euo pipefail

readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$(cd "$HERE/../../.." && pwd)

fail() {
    printf 'release.sh: %s\n' "$1" >&2
    exit 1
}

output=$ROOT/target/release-files
while (($#)); do
    case $1 in
    --output) output=${2:?a folder} ;;
    *) fail "unknown argument $1; see the head of this file" ;;
    esac
    shift 2
done
for program in cargo tar sha256sum dpkg-deb; do
    command -v "$program" >/dev/null || fail "no $program"
done

cd "$ROOT"
readonly TARGET=$(rustc -vV | sed -n 's/^host: //p')
readonly MACHINE=${TARGET%%-*}
readonly BUILT=${CARGO_TARGET_DIR:-$ROOT/target}
cargo build --release --locked -p vhca-command -p vhca-umad >&2
# The command runs in any image; the library is loaded into programs, and cannot be static.
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
    cargo build --release --locked -p vhca-command --target "$TARGET" >&2

tree=$(mktemp -d)
trap 'rm -r "$tree"' EXIT
install -D -m 755 "$BUILT/$TARGET/release/vhca" "$tree/vhca/bin/vhca"
install -D -m 644 "$BUILT/release/libvhca_umad.so" "$tree/vhca/lib/libvhca_umad.so"
if command -v strip >/dev/null; then
    strip --strip-unneeded "$tree/vhca/bin/vhca" "$tree/vhca/lib/libvhca_umad.so"
fi
install -m 644 README.md CHANGELOG.md SECURITY.md LICENSE-* "$tree/vhca"
"$BUILT/release/vhca" generate man "$tree/vhca/share/man/man1"

mkdir -p "$output"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
archive=$output/vhca-$MACHINE-linux.tar.gz
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --directory "$tree" vhca |
    gzip -9n >"$archive"
package=$("$HERE/build-deb.sh" --from "$BUILT/release" --output "$output")
cd "$output"
sha256sum "${archive##*/}" "${package##*/}" >SHA256SUMS
printf '%s\n' "$archive" "$package" "$output/SHA256SUMS"
