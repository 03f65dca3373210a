#!/usr/bin/env bash
# Builds the Debian package of vhca by dpkg-deb alone.
#
# Usage: build-deb.sh [--from FOLDER] [--output FOLDER]
#   --from FOLDER    take vhca and libvhca_umad.so from there; by default they are built for release
#   --output FOLDER  leave the package there; by default in target/debian
# Prints the path of the package.
set -euo pipefail

readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$(cd "$HERE/../../.." && pwd)
readonly BINARIES=(vhca libvhca_umad.so)
# Documents, with the files to which they lead.
readonly DOCUMENTS=("$HERE"/../docs/* "$HERE"/../../vfio-user/docs/*.md "$HERE"/../../vhca/docs/*.md "$ROOT/SECURITY.md")

fail() {
    printf 'build-deb.sh: %s\n' "$1" >&2
    exit 1
}

from='' output=$ROOT/target/debian
while (($#)); do
    case $1 in
    --from) from=${2:?a folder} ;;
    --output) output=${2:?a folder} ;;
    *) fail "unknown argument $1; see the head of this file" ;;
    esac
    shift 2
done
command -v dpkg-deb >/dev/null || fail "no dpkg-deb: install the package dpkg"

if [[ -z $from ]]; then
    (cd "$ROOT" && cargo build --release --locked >&2)
    from=${CARGO_TARGET_DIR:-$ROOT/target}/release
fi
for binary in "${BINARIES[@]}"; do
    [[ -f $from/$binary ]] || fail "no $binary in $from: build it with cargo build --release"
done

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
architecture=$(dpkg --print-architecture)
# The newest version of the C library whose symbols the binaries use.
libc=$(grep -aoh 'GLIBC_2\.[0-9.]*' "${BINARIES[@]/#/$from/}" | sort -uV | tail -n 1)
# The same sources make the same package.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$ROOT" log -1 --format=%ct 2>/dev/null || date +%s)}

tree=$(mktemp -d)
trap 'rm -r "$tree"' EXIT
chmod 755 "$tree"

# file MODE SOURCE PLACE: installs a file below its place in the package.
file() {
    install -D -m "$1" "$2" "$tree/$3"
}

# compressed PLACE: writes what it reads, as Debian compresses documents.
compressed() {
    mkdir -p "$(dirname "$tree/$1")"
    gzip -9n >"$tree/$1.gz"
}

# own_links DOCUMENT: writes the document with links to the package's own documents in place of those of the sources, and with
# text in place of links to files that the package does not have.
own_links() {
    perl -pe '
        BEGIN { %own = map { s|.*/||r => 1 } @ARGV[1 .. $#ARGV]; @ARGV = @ARGV[0 .. 0] }
        s{\[([^\]]*)\]\(([^)#]+)(#[^)]*)?\)}{
            my ($text, $path, $part) = ($1, $2, $3 // "");
            my $name = $path =~ s|.*/||r;
            $path =~ m|^\w+:| ? "[$text]($path$part)" : $own{$name} ? "[$text]($name$part)" : $text
        }ge' "$1" "${DOCUMENTS[@]}"
}

file 755 "$from/vhca" usr/bin/vhca
file 644 "$from/libvhca_umad.so" usr/lib/vhca/libvhca_umad.so
if command -v strip >/dev/null; then
    strip --strip-unneeded "$tree/usr/bin/vhca" "$tree/usr/lib/vhca/libvhca_umad.so"
fi

"$from/vhca" generate man "$tree/usr/share/man/man1"
gzip -9n "$tree"/usr/share/man/man1/*.1
completions=usr/share/bash-completion/completions/vhca:bash
completions+=" usr/share/zsh/vendor-completions/_vhca:zsh usr/share/fish/vendor_completions.d/vhca.fish:fish"
for entry in $completions; do
    mkdir -p "$(dirname "$tree/${entry%:*}")"
    "$from/vhca" generate completions "${entry##*:}" >"$tree/${entry%:*}"
done

file 644 "$HERE/vhca.service" usr/lib/systemd/system/vhca.service
file 644 "$HERE/vhca.toml" usr/share/doc/vhca/examples/vhca.toml
file 644 "$HERE/vhca.toml" etc/vhca/vhca.toml
# The text of the licence that Debian does not have, as the file's format wants it.
{
    cat "$HERE/debian/copyright"
    sed 's/^$/./; s/^/ /' "$ROOT/LICENSE-BSD-3-Clause"
} >"$tree/usr/share/doc/vhca/copyright"
for document in "${DOCUMENTS[@]}"; do
    [[ $document == *.md ]] || file 644 "$document" "usr/share/doc/vhca/${document##*/}"
done
for document in "${DOCUMENTS[@]}"; do
    [[ $document != *.md ]] || own_links "$document" >"$tree/usr/share/doc/vhca/${document##*/}"
done
compressed usr/share/doc/vhca/CHANGELOG.md <"$ROOT/CHANGELOG.md"
maintainer=$(sed -n 's/^Maintainer: //p' "$HERE/debian/control")
printf 'vhca (%s) unstable; urgency=medium\n\n  * Changes are in CHANGELOG.md.gz.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | compressed usr/share/doc/vhca/changelog

for script in postinst prerm postrm; do
    file 755 "$HERE/debian/$script" "DEBIAN/$script"
done
echo /etc/vhca/vhca.toml >"$tree/DEBIAN/conffiles"
size=$(du -k -s --exclude DEBIAN "$tree" | cut -f 1)
sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@LIBC@/${libc#GLIBC_}/; s/@SIZE@/$size/" \
    "$HERE/debian/control" >"$tree/DEBIAN/control"
(cd "$tree" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
find "$tree" -type d -exec chmod 755 {} +
find "$tree/usr/share" "$tree/DEBIAN/md5sums" "$tree/DEBIAN/conffiles" "$tree/DEBIAN/control" -type f -exec chmod 644 {} +

mkdir -p "$output"
package=$output/vhca_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$tree" "$package" >&2
echo "$package"
