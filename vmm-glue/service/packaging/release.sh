#!/usr/bin/env bash
# Makes the files of a release: an archive with a static command, the Debian package, and their checksums.
#
# Usage: release.sh [--output FOLDER] [--library]
#   --output FOLDER  leave the files there; by default in target/release-files
#   --library        make the library for programs alone
# Prints the paths of the files.
set -euo pipefail

readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$(cd "$HERE/../../.." && pwd)

fail() {
    printf 'release.sh: %s\n' "$1" >&2
    exit 1
}

output=$ROOT/target/release-files only_library=false
while (($#)); do
    case $1 in
    --output) output=${2:?a folder} && shift 2 ;;
    --library) only_library=true && shift ;;
    *) fail "unknown argument $1; see the head of this file" ;;
    esac
done
for program in cargo tar sha256sum dpkg-deb objdump; do
    command -v "$program" >/dev/null || fail "no $program"
done
command -v cargo-zigbuild >/dev/null || fail "no cargo-zigbuild: pip install cargo-zigbuild==0.24.1 ziglang==0.17.1"

cd "$ROOT"
readonly TARGET=$(rustc -vV | sed -n 's/^host: //p')
readonly MACHINE=${TARGET%%-*}
readonly BUILT=${CARGO_TARGET_DIR:-$ROOT/target}
# The C library of the oldest images in which programs may have the library: of RHEL 7. All newer ones take it, too.
readonly LIBC=2.17

# Programs of images have the library loaded, whose C library is older than this machine's, and some have no libgcc_s.
cargo zigbuild --release --locked -p vhca-umad --target "$TARGET.$LIBC" >&2
readonly LIBRARY=$BUILT/$TARGET/release/libvhca_umad.so
symbols=$(objdump -T "$LIBRARY" | grep -F '*UND*')
newest=$(printf 'GLIBC_%s\n' "$LIBC" | cat - <(grep -o 'GLIBC_[0-9.]*' <<<"$symbols") | sort -V | tail -n 1)
[[ $newest == "GLIBC_$LIBC" ]] || fail "the library asks for $newest"
! objdump -p "$LIBRARY" | grep -q 'NEEDED *libgcc_s' || fail "the library asks for libgcc_s"
mkdir -p "$output"
if $only_library; then
    install -m 644 "$LIBRARY" "$output/libvhca_umad.so"
    echo "$output/libvhca_umad.so"
    exit
fi

cargo build --release --locked -p vhca-command >&2
# The command runs in any image; the library is loaded into programs, and cannot be static.
RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
    cargo build --release --locked -p vhca-command --target "$TARGET" >&2

tree=$(mktemp -d)
trap 'rm -r "$tree"' EXIT
install -D -m 755 "$BUILT/$TARGET/release/vhca" "$tree/vhca/bin/vhca"
install -D -m 644 "$LIBRARY" "$tree/vhca/lib/libvhca_umad.so"
mkdir "$tree/package"
install "$BUILT/release/vhca" "$LIBRARY" "$tree/package"
if command -v strip >/dev/null; then
    strip --strip-unneeded "$tree/vhca/bin/vhca" "$tree/vhca/lib/libvhca_umad.so"
fi
install -m 644 README.md CHANGELOG.md SECURITY.md LICENSE-* "$tree/vhca"
"$BUILT/release/vhca" generate man "$tree/vhca/share/man/man1"

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
archive=$output/vhca-$MACHINE-linux.tar.gz
tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --directory "$tree" vhca |
    gzip -9n >"$archive"
package=$("$HERE/build-deb.sh" --from "$tree/package" --output "$output")
cd "$output"
sha256sum "${archive##*/}" "${package##*/}" >SHA256SUMS
printf '%s\n' "$archive" "$package" "$output/SHA256SUMS"
