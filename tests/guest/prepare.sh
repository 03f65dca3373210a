#!/usr/bin/env bash
# Fills the cache from which guests boot: a QEMU that knows vfio-user-pci, Debian's kernels, and an
# initramfs for each of them with the InfiniBand drivers and tools. Needs the network only for what the
# cache lacks, no root, and of Debian or Ubuntu only apt-get, dpkg-deb, tar and the archive's keys; the
# packages that it takes are unpacked into the cache and never installed.
#
# Usage: prepare.sh [--cache DIR] [KERNEL...]
#   KERNEL is 6.1, 6.12 (of the backports) or cloud (6.1 for clouds), all three by default; or a suite of
#   Debian, whose kernel it then is: bullseye, trixie, trixie-backports, forky, sid ...
# Environment: VHCA_GUEST_CACHE, the cache (default: ${XDG_CACHE_HOME:-~/.cache}/vhca-guest);
#   VHCA_DEBIAN_MIRROR, a Debian mirror (default: that of this machine's apt, or deb.debian.org).
set -euo pipefail
readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly KEYS=/usr/share/keyrings/debian-archive-keyring.gpg

# The first QEMU with vfio-user-pci is 10.1.
readonly QEMU_PACKAGES=(qemu-system-x86)
# (The applets of Debian's busybox come before the programs on the PATH, in its shell and whatever else starts a
# program: hence bash, and others for those.)
readonly GUEST_PACKAGES=(busybox-static bash coreutils findutils kmod ibverbs-utils ibverbs-providers infiniband-diags rdmacm-utils
    perftest iproute2 iputils-ping iperf3 pciutils util-linux ethtool tcpdump kexec-tools)
# What of them goes into the initramfs, beside the libraries that it needs.
readonly GUEST_FILES=('usr/bin/bash' 'usr/bin/env' 'usr/bin/nice' 'usr/bin/nohup' 'usr/bin/stdbuf' 'usr/bin/timeout'
    'usr/libexec/coreutils/libstdbuf.so' 'usr/bin/xargs' 'usr/bin/ibv_*' 'usr/bin/*ping' 'usr/sbin/ib*' 'usr/sbin/saquery' 'usr/sbin/sminfo'
    'usr/sbin/smp*' 'usr/sbin/perfquery' 'usr/sbin/vendstat' 'usr/bin/ib_*' 'usr/bin/mckey' 'usr/bin/udaddy'
    'usr/bin/rping' 'usr/bin/rstream' 'usr/bin/rcopy' 'usr/bin/riostream' 'usr/bin/ucmatose' 'usr/bin/udpong' 'usr/bin/cmtime' 'usr/bin/rdma_*' 'usr/bin/iperf3' 'usr/bin/ip'
    'usr/bin/rdma' 'usr/bin/ss' 'usr/bin/nstat' 'usr/sbin/devlink' 'usr/bin/dmesg' 'usr/bin/lspci' 'usr/bin/setpci'
    'usr/share/misc/pci.ids' 'usr/sbin/ethtool' 'usr/sbin/kexec' 'usr/bin/tcpdump' 'usr/bin/kmod' 'usr/bin/busybox'
    'usr/lib/x86_64-linux-gnu/libibverbs/libmlx4-*.so' 'usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so'
    'usr/lib/x86_64-linux-gnu/libgcc_s.so.1' 'etc/libibverbs.d/mlx4.driver' 'etc/libibverbs.d/rxe.driver' 'etc/services'
    'usr/share/infiniband-diags/*' 'etc/infiniband-diags/*')
readonly MODULES=(mlx4_core mlx4_ib ib_core ib_uverbs ib_umad ib_cm ib_ipoib rdma_cm rdma_ucm
    af_packet ipv6 configfs qemu_fw_cfg virtio_pci virtio_net rdma_rxe crc32_generic vfio-pci vfio_iommu_type1)

# What guests with storage over RDMA have besides: targets, initiators, and file systems.
readonly STORAGE_PACKAGES=(nvme-cli open-iscsi nfs-common nfs-kernel-server e2fsprogs fio netbase)
readonly STORAGE_FILES=('usr/sbin/nvme' 'usr/sbin/iscsid' 'usr/bin/iscsiadm' 'usr/sbin/iscsiadm' 'usr/sbin/mount.nfs*' 'usr/sbin/exportfs'
    'usr/sbin/rpc.nfsd' 'usr/sbin/rpc.mountd' 'usr/sbin/mke2fs' 'usr/bin/fio' 'etc/netconfig' 'etc/protocols' 'etc/rpc' 'etc/services'
    'etc/iscsi/iscsid.conf' 'etc/mke2fs.conf')
readonly STORAGE_MODULES=(nvme-rdma nvmet-rdma ib_iser ib_isert ib_srp ib_srpt target_core_iblock rpcrdma nfsv3 nfsv4 nfsd
    rds_rdma sd_mod virtio_blk ext4 crc32c_generic crc32c_intel)

cache=${VHCA_GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vhca-guest}
kernels=()

fail() {
    printf 'prepare.sh: %s\n' "$@" >&2
    exit 1
}

say() { printf 'prepare.sh: %s\n' "$*"; }

while (($#)); do
    case $1 in
    --cache)
        cache=${2:?"--cache needs a directory"}
        shift
        ;;
    -h | --help)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    6.1 | 6.12 | cloud) kernels+=("$1") ;;
    -* | *[^a-z-]*) fail "no kernel called \"$1\": there are 6.1, 6.12 and cloud, and a suite of Debian means its own" ;;
    *) kernels+=("$1") ;;
    esac
    shift
done
((${#kernels[@]})) || kernels=(6.1 6.12 cloud)

# The release, the suite and the package of a kernel.
kernel_source() {
    case $1 in
    6.1) echo bookworm bookworm linux-image-amd64 ;;
    6.12) echo bookworm bookworm-backports linux-image-amd64 ;;
    cloud) echo bookworm bookworm linux-image-cloud-amd64 ;;
    *) echo "${1%-backports}" "$1" linux-image-amd64 ;;
    esac
}

check_host() {
    local command
    [[ $(uname -m) == x86_64 ]] || fail "guests are x86-64, and run only on x86-64 machines"
    for command in apt-get dpkg-deb tar; do
        command -v "$command" >/dev/null ||
            fail "there is no $command: prepare on Debian or Ubuntu and copy $cache here"
    done
    [[ -r $KEYS ]] || fail "no $KEYS: install the package debian-archive-keyring"
}

# The mirror that this machine uses for Debian, if it does.
mirror() {
    local configured
    if [[ -n ${VHCA_DEBIAN_MIRROR:-} ]]; then
        echo "${VHCA_DEBIAN_MIRROR%/}"
        return
    fi
    configured=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        sed -n '/\/debian\/*$/{s/\/*$//p;q}') || true
    echo "${configured:-http://deb.debian.org/debian}"
}

# apt RELEASE COMMAND...: an apt-get that knows only that release, and its backports if they are of use here, and thinks
# that nothing is installed, so that it finds all that a package needs.
apt() {
    local release=$1 dir=$cache/apt/$1
    shift
    APT_CONFIG=$dir/apt.conf apt-get -q "$@"
}

# Makes the private apt of a release, once a run.
apt_ready() {
    local release=$1 dir=$cache/apt/$1 suites=("$1") uri
    [[ -e $dir/.updated-$$ ]] && return
    # Releases that are old or to come have no backports.
    case $release in
    bookworm | trixie) suites+=("$release-backports") ;;
    esac
    check_host
    uri=$(mirror)
    mkdir -p "$dir"/{lists,archives}/partial
    : >"$dir/status"
    printf "deb [signed-by=$KEYS] $uri %s main\n" "${suites[@]}" >"$dir/sources.list"
    cat >"$dir/apt.conf" <<END
Dir::State "$dir";
Dir::State::status "$dir/status";
Dir::Cache "$dir";
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Debug::NoLocking "true";
END
    say "reading the package lists of Debian $release at $uri"
    apt "$release" update >"$dir/log" 2>&1 && ! grep -q '^[WE]: Failed' "$dir/log" || {
        tail -n 5 "$dir/log" >&2
        fail "cannot read the package lists of $release: is that a release of Debian, and the network up?" \
            "  Another mirror: VHCA_DEBIAN_MIRROR=http://.../debian $0" \
            "  Behind a proxy: http_proxy=http://... $0" \
            "  Without network: copy a prepared $cache from another machine"
    }
    rm -f "$dir"/.updated-*
    : >"$dir/.updated-$$"
}

# take RELEASE SUITE DIR PACKAGE...: unpacks the packages of the suite, and all that they need, into DIR.
take() {
    local release=$1 suite=$2 dir=$3 archive size
    shift 3
    apt_ready "$release"
    apt "$release" clean
    size=$(apt "$release" install -y -d --print-uris -t "$suite" "$@" 2>/dev/null |
        awk '/^\047/ {n++; bytes += $3} END {printf "%d packages, %d MB", n, bytes / 1e6}') || true
    say "downloading $* and what it needs from $suite: ${size:-of unknown size}"
    apt "$release" install -y -d -t "$suite" "$@" >"$cache/apt/$release/log" 2>&1 || {
        tail -n 5 "$cache/apt/$release/log" >&2
        fail "cannot download $* from $suite; if the suite has moved on, say where it is now:" \
            "  VHCA_DEBIAN_MIRROR=http://archive.debian.org/debian $0"
    }
    for archive in "$cache/apt/$release/archives"/*.deb; do
        unpack "$archive" "$dir"
    done
    apt "$release" clean
}

# Packages may still have files in /lib or /bin; here these are links, as on any installed system.
unpack() {
    local dir=$2 name
    for name in bin sbin lib lib64; do
        mkdir -p "$dir/usr/$name"
        [[ -e $dir/$name ]] || ln -s "usr/$name" "$dir/$name"
    done
    dpkg-deb --fsys-tarfile "$1" | tar -x -C "$dir" --keep-directory-symlink --no-same-owner \
        --exclude='./usr/share/doc*' --exclude='./usr/share/man' --exclude='./usr/share/locale' \
        --exclude='./dev'
}

# Fills a directory by a command, at once or not at all: fill DIR STAMP COMMAND... where the command
# takes the directory as its last argument.
fill() {
    local dir=$1 stamp=$2
    shift 2
    if [[ -e $dir/.complete && $(<"$dir/.complete") == "$stamp" ]]; then
        return
    fi
    rm -rf "$dir" "$dir.new"
    mkdir -p "$dir.new"
    "$@" "$dir.new"
    echo "$stamp" >"$dir.new/.complete"
    mv "$dir.new" "$dir"
    say "$(basename "$dir") is there, $(du -sm "$dir" | cut -f1) MB ($SECONDS s so far)"
}

# run_in ROOT PROGRAM...: runs a program of an unpacked root with the libraries of that root.
run_in() {
    local root=$1 program=$2
    shift 2
    "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" "$root/$program" "$@"
}

make_qemu() {
    take trixie trixie-backports "$1" "${QEMU_PACKAGES[@]}"
}

make_userland() {
    take bookworm bookworm "$1" "${GUEST_PACKAGES[@]}"
}

make_storage() {
    take bookworm bookworm "$1" "${STORAGE_PACKAGES[@]}"
}

make_kernel() {
    local release suite package dir=$2 version
    read -r release suite package < <(kernel_source "$1")
    take "$release" "$suite" "$dir" "$package"
    version=$(basename "$dir"/usr/lib/modules/*)
    # Since Linux 7.3 the image is among the modules.
    mv "$dir/boot/vmlinuz-$version" "$dir/vmlinuz" 2>/dev/null ||
        mv "$dir/usr/lib/modules/$version/vmlinuz" "$dir/vmlinuz"
    echo "$version" >"$dir/version"
    depmod_in "$dir" "$version"
    keep_modules "$dir" "$version" modules "${MODULES[@]}"
    find "$dir/modules" -name 'mlx4_ib.ko*' | grep -q . || fail "Linux $version has no mlx4_ib"
    keep_modules "$dir" "$version" storage "${MODULES[@]}" "${STORAGE_MODULES[@]}"
    # Only the kernel and the modules stay: the rest is what no boot ever needs.
    find "$dir" -mindepth 1 -maxdepth 1 ! -name vmlinuz ! -name version ! -name modules ! -name storage -exec rm -rf {} +
}

# keep_modules DIR VERSION NAME MODULE...: copies the modules, and those that they need, to DIR/NAME. A kernel that has not
# all of them gives what it has.
keep_modules() {
    local dir=$1 version=$2 module file kept=$1/$3
    shift 3
    run_in "$userland" usr/bin/kmod --version >/dev/null || fail "kmod of $userland does not run"
    mkdir -p "$kept/usr/lib/modules/$version"
    ln -s usr/lib "$kept/lib"
    for module in "$@"; do
        # A line is "insmod PATH [PARAMETER...]" or "builtin NAME".
        { modprobe_in "$dir" "$version" --show-depends "$module" 2>/dev/null || true; } |
            sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | sort -u | while read -r file; do
        file=${file#"$dir"/}
        install -D -m 644 "$dir/$file" "$kept/$file"
    done
    cp "$dir/usr/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$kept/usr/lib/modules/$version/"
    depmod_in "$kept" "$version"
}

# kmod is one program under several names.
kmod_as() {
    local name=$1
    shift
    mkdir -p "$userland/kmod"
    ln -sf ../usr/bin/kmod "$userland/kmod/$name"
    "$userland/usr/lib64/ld-linux-x86-64.so.2" --argv0 "$name" \
        --library-path "$userland/usr/lib/x86_64-linux-gnu" "$userland/usr/bin/kmod" "$@"
}

depmod_in() { kmod_as depmod -b "$1" "$2"; }

modprobe_in() {
    local dir=$1 version=$2
    shift 2
    kmod_as modprobe -C /dev/null -d "$dir" -S "$version" "$@"
}

# The tree of the initramfs but for the modules.
make_tree() {
    local tree=$1 file applet
    mkdir -p "$tree"/{usr/{bin,sbin,lib,lib64},dev,etc,proc,root,run,sys,tmp}
    for file in bin sbin lib lib64; do
        ln -s "usr/$file" "$tree/$file"
    done
    copy_files "$userland" "$tree" "${GUEST_FILES[@]}"
    install "$HERE/init" "$tree/init"
    ln -s bash "$tree/usr/bin/sh"
    for applet in modprobe rmmod insmod lsmod modinfo depmod; do
        ln -s ../bin/kmod "$tree/usr/sbin/$applet"
    done
    "$tree/usr/bin/busybox" --list | while read -r applet; do
        [[ -e $tree/usr/bin/$applet || -e $tree/usr/sbin/$applet ]] || ln -s busybox "$tree/usr/bin/$applet"
    done
    printf 'root:x:0:0:root:/root:/bin/sh\n' >"$tree/etc/passwd"
    printf 'root:x:0:\n' >"$tree/etc/group"
    printf '127.0.0.1 localhost\n::1 localhost\n' >"$tree/etc/hosts"
    printf 'hosts: files\n' >"$tree/etc/nsswitch.conf"
}

# copy_files ROOT TREE PATTERN...: copies files of an unpacked root to a tree, with the libraries of all programs there, and
# the loader at the place that programs name.
copy_files() {
    local root=$1 tree=$2 file library
    shift 2
    (
        cd "$root"
        # shellcheck disable=SC2068 # The patterns are to be expanded here.
        for file in $@; do
            [[ ! -e $file ]] || echo "$file"
        done
    ) | while read -r file; do
        install -D "$(readlink -f "$root/$file")" "$tree/$file"
    done
    find "$tree/usr" -type f ! -name busybox | while read -r file; do
        # Scripts and static programs have none.
        ! is_dynamic "$root" "$file" || libraries_of "$root" "$file"
    done | sort -u | while read -r library; do
        install -D "$(readlink -f "$library")" "$tree/usr/lib/x86_64-linux-gnu/$(basename "$library")"
    done
    install -D "$(readlink -f "$root/usr/lib64/ld-linux-x86-64.so.2")" "$tree/usr/lib64/ld-linux-x86-64.so.2"
}

# The loader's status is 0 for a program and 2 for a library.
is_dynamic() {
    "$1/usr/lib64/ld-linux-x86-64.so.2" --verify "$2" >/dev/null 2>&1 || (($? == 2))
}

libraries_of() {
    local root=$1 libraries=$1/usr/lib/x86_64-linux-gnu
    # What fio needs has a folder of its own.
    "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$libraries:$libraries/ceph" \
        --list "$2" 2>/dev/null | sed -n "s,.* => \($root[^ ]*\) .*,\1,p"
}

# archive DIR FILE: appends the tree to an initramfs. The kernel takes several archives in one file.
archive() {
    (cd "$1" && find . | sort | "$userland/usr/bin/busybox" cpio -o -H newc 2>/dev/null) >>"$2"
}

make_initramfs() {
    local kernel=$1 dir=$2
    make_tree "$dir/tree"
    # For kexec.
    install -D -m 644 "$cache/kernel-$kernel/vmlinuz" "$dir/tree/boot/vmlinuz"
    archive "$dir/tree" "$dir/initrd"
    archive "$cache/kernel-$kernel/modules" "$dir/initrd"
    rm -rf "$dir/tree"
    copy_files "$cache/storage" "$dir/tree" "${STORAGE_FILES[@]}"
    install -D "$HERE/storage-target" "$dir/tree/usr/sbin/storage-target"
    # An installed nvme-cli makes these of its machine's UUID.
    mkdir -p "$dir/tree/etc/nvme"
    echo 00000000-0000-4000-8000-000000000001 >"$dir/tree/etc/nvme/hostid"
    echo nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001 >"$dir/tree/etc/nvme/hostnqn"
    cp "$dir/initrd" "$dir/initrd-storage"
    archive "$dir/tree" "$dir/initrd-storage"
    archive "$cache/kernel-$kernel/storage" "$dir/initrd-storage"
    rm -rf "$dir/tree"
}

# The program that starts this QEMU, on whatever system it was unpacked.
write_qemu_script() {
    cat >"$cache/qemu-system-x86_64.new" <<'END'
#!/bin/sh
# Runs the QEMU beside it with the loader and the libraries that were unpacked with it.
root=$(dirname "$(readlink -f "$0")")/qemu
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --argv0 "$0" --library-path "$root/usr/lib/x86_64-linux-gnu" \
    "$root/usr/bin/qemu-system-x86_64" -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" "$@"
END
    chmod +x "$cache/qemu-system-x86_64.new"
    mv "$cache/qemu-system-x86_64.new" "$cache/qemu-system-x86_64"
}

mkdir -p "$cache" || fail "cannot make $cache; another place: --cache DIR"
cache=$(cd "$cache" && pwd)
userland=$cache/userland
exec 9>"$cache/.lock"
flock 9

fill "$cache/qemu" 1 make_qemu
write_qemu_script
"$cache/qemu-system-x86_64" -device help 2>&1 | grep -q '"vfio-user-pci"' ||
    fail "$("$cache/qemu-system-x86_64" --version 2>&1 | head -n 1) has no vfio-user-pci (10.1 is the first that has);" \
        "  remove $cache/qemu and run this again"
fill "$userland" "${GUEST_PACKAGES[*]}" make_userland
fill "$cache/storage" "${STORAGE_PACKAGES[*]}" make_storage
install "$HERE/boot.sh" "$cache/boot.new"
mv "$cache/boot.new" "$cache/boot"
recipe=$(cat "$HERE/prepare.sh" "$HERE/init" "$HERE/storage-target" | sha256sum)
for kernel in "${kernels[@]}"; do
    fill "$cache/kernel-$kernel" "${MODULES[*]} ${STORAGE_MODULES[*]}" make_kernel "$kernel"
    fill "$cache/initramfs-$kernel" "$recipe $(<"$cache/kernel-$kernel/version")" make_initramfs "$kernel"
    say "Linux $(<"$cache/kernel-$kernel/version") is ready as $kernel"
done
say "guests run under $(VHCA_GUEST_CACHE=$cache "$HERE/boot.sh" --kernel "${kernels[0]}" --accel)"
# The package lists are of no use to anybody later.
rm -rf "$cache/apt"
