#!/usr/bin/env bash
# Boots a guest from the cache that prepare.sh filled. Without -c it gives a shell on its console (leave
# it by "exit" or ^A X); with -c it runs the commands and ends with their exit status.
#
# Usage: boot.sh [OPTION...]
#   -k, --kernel KERNEL     6.1 (the default), 6.12, cloud, or another that prepare.sh was asked for
#   -v, --vfio-user SOCKET  give the guest the device behind this socket; can be given more than once
#   -c, --commands TEXT     run this, print what it prints, and end
#   -t, --timeout SECONDS   end a guest that -c started after so long (default: 120)
#   -a, --append TEXT       more kernel parameters: vhca.load=no leaves the drivers alone,
#                           "mlx4_core.debug_level=1 ignore_loglevel" tells what they do
#   -m, --memory MIB        memory (default: 512)
#       --cpus N            processors (default: 1)
#       --name NAME         the guest's host name
#       --slots N           empty slots, called slot1 to slotN, for VFs that the monitor adds
#       --netdev BACKEND    a network card, eth0, on this backend of QEMU: "user" has the host at 10.0.2.2, and
#                           "stream,addr.type=unix,addr.path=PATH,server=on|off" joins two guests
#       --disk FILE         a disk on this file, by virtio; the first is /dev/vda
#       --storage           the programs and modules of storage over RDMA, with 1024 MiB of memory unless -m says otherwise
#       --add DIR           the files of this folder, too, at their places from the root on
#       --iommu             an IOMMU that remaps DMA and interrupts, for VFIO in the guest
#       --private-memory    memory that QEMU does not share with the device
#       --may-reboot        a reboot starts the guest anew, rather than ending it
#       --console SOCKET    the console is on this Unix socket, what it prints in SOCKET.log, too, and SOCKET.window
#                           takes lines "ROWS COLUMNS", the size of its terminal
#       --log FILE          the console only writes, to this file
#       --agent SOCKET      serve commands on this Unix socket, on which somebody listens (see init)
#       --qmp SOCKET        QEMU's monitor is on this Unix socket, which QEMU makes
#       --incoming FILE     continue the guest that a migration wrote to this file, rather than boot one
#       --trace PATTERN     QEMU's trace events, such as vfio_user_*
#       --accel             only tell what guests run under here, tcg or kvm
# Environment: VHCA_GUEST_CACHE, the cache; VHCA_GUEST_ACCEL, tcg or kvm (default: kvm if a guest boots with it,
#   which is tried once for each boot of this machine).
set -euo pipefail

fail() {
    printf 'boot.sh: %s\n' "$@" >&2
    exit 1
}

# Where KVM works at all, a guest is up within three seconds.
readonly KVM_LIMIT=20
readonly HERE=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
if [[ -x $HERE/qemu-system-x86_64 ]]; then
    cache=$HERE
else
    cache=${VHCA_GUEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vhca-guest}
fi
kernel=6.1 memory='' cpus=1 slots=0 share=on timeout=120 name=guest
add='' iommu='' commands='' append='' console='' log='' agent='' qmp='' incoming='' netdev='' reboot=(-no-reboot) only_accel='' storage=''
devices=() traces=() disks=()

while (($#)); do
    case $1 in
    -h | --help | --private-memory | --storage | --iommu | --may-reboot | --accel) ;;
    *) (($# > 1)) || fail "\"$1\" is no option or needs a value: see --help" ;;
    esac
    case $1 in
    -k | --kernel) kernel=$2 ;;
    -v | --vfio-user) devices+=("$2") ;;
    -c | --commands) commands=$2 ;;
    -t | --timeout) timeout=$2 ;;
    -a | --append) append=$2 ;;
    -m | --memory) memory=$2 ;;
    --cpus) cpus=$2 ;;
    --name) name=$2 ;;
    --console) console=$2 ;;
    --log) log=$2 ;;
    --agent) agent=$2 ;;
    --slots) slots=$2 ;;
    --qmp) qmp=$2 ;;
    --incoming) incoming=$2 ;;
    --netdev) netdev=$2 ;;
    --add) add=$2 ;;
    --disk) disks+=("$2") ;;
    --trace) traces+=(-trace "$2") ;;
    --accel)
        only_accel=yes
        shift
        continue
        ;;
    --private-memory)
        share=off
        shift
        continue
        ;;
    --iommu)
        iommu=yes
        shift
        continue
        ;;
    --storage)
        storage=yes
        shift
        continue
        ;;
    --may-reboot)
        reboot=()
        shift
        continue
        ;;
    -h | --help)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
    *) fail "no option called \"$1\": see --help" ;;
    esac
    shift 2
done

[[ -x $cache/qemu-system-x86_64 ]] ||
    fail "no QEMU in $cache: run tests/guest/prepare.sh first, or say by VHCA_GUEST_CACHE where it is"
[[ -e $cache/kernel-$kernel/vmlinuz && -e $cache/initramfs-$kernel/initrd ]] ||
    fail "no kernel $kernel in $cache: run tests/guest/prepare.sh $kernel, if it is one of 6.1, 6.12 and cloud, or a suite of Debian"
# A service that was started a moment ago may not have made its sockets yet.
for socket in "${devices[@]}"; do
    for ((tries = 0; tries < 50; tries++)); do
        [[ ! -S $socket ]] || break
        sleep 0.1
    done
    [[ -S $socket ]] || fail "no socket $socket: is vhca serve --vfio-user running?"
done

# Whether a guest boots with KVM. That there is a /dev/kvm says little: in some virtual machines it runs no stock kernel.
boots_with_kvm() {
    VHCA_GUEST_ACCEL=kvm "${BASH_SOURCE[0]}" --kernel "$kernel" --timeout "$KVM_LIMIT" --append vhca.load=no \
        --commands true >/dev/null 2>&1
}

try_kvm() {
    if boots_with_kvm; then
        accel=kvm
    else
        accel=tcg
        echo "boot.sh: no guest boots with KVM here, so guests run under TCG; VHCA_GUEST_ACCEL=kvm has it tried anyway" >&2
    fi
}

# Sets accel: what the user says, what was found out since this machine was booted, or what is found out now.
choose_accel() {
    local found=$cache/accel boot known=''
    accel=${VHCA_GUEST_ACCEL:-}
    [[ -z $accel ]] || return 0
    if ! [[ -r /dev/kvm && -w /dev/kvm ]]; then
        accel=tcg
    elif ! [[ -w $cache ]]; then
        try_kvm
    else
        boot=$(</proc/sys/kernel/random/boot_id)
        exec 8>"$cache/.accel.lock"
        flock 8
        [[ ! -e $found ]] || read -r known accel <"$found"
        if [[ $known != "$boot" ]]; then
            try_kvm
            echo "$boot $accel" >"$found"
        fi
        exec 8>&-
    fi
}

choose_accel
if [[ -n $only_accel ]]; then
    echo "$accel"
    exit 0
fi

# Without KVM the kernel takes the timer for broken, and panics, when this machine is too busy to deliver its interrupts.
parameters="console=ttyS0 panic=-1 quiet mitigations=off no_timer_check vhca.name=$name"
initrd=$cache/initramfs-$kernel/initrd
if [[ -n $storage ]]; then
    initrd+=-storage
    memory=${memory:-1024}
fi
memory=${memory:-512}
machine=q35,memory-backend=ram
# KVM delivers remapped interrupts only if QEMU has the interrupt controller of the chipset.
[[ -z $iommu ]] || machine+=,kernel-irqchip=split
qemu=("$cache/qemu-system-x86_64" -name "$name" -accel "$accel" -machine "$machine"
    -object "memory-backend-memfd,id=ram,size=${memory}M,share=$share" -m "$memory" -smp "$cpus"
    -display none -vga none -net none -monitor none "${reboot[@]}" "${traces[@]}"
    -kernel "$cache/kernel-$kernel/vmlinuz")
[[ $accel == kvm ]] && qemu+=(-cpu host)
if [[ -n $iommu ]]; then
    # It has to be there before the devices that it serves.
    qemu+=(-device intel-iommu,intremap=on,caching-mode=on)
    parameters+=" intel_iommu=on"
fi
for socket in "${devices[@]}"; do
    # JSON strings have their own escapes.
    socket=${socket//\\/\\\\}
    qemu+=(-device "{\"driver\":\"vfio-user-pci\",\"socket\":{\"path\":\"${socket//\"/\\\"}\",\"type\":\"unix\"}}")
done
for disk in "${disks[@]}"; do
    # In the value of a QEMU option a comma is written twice.
    qemu+=(-drive "if=virtio,format=raw,file=${disk//,/,,}")
done
for ((slot = 1; slot <= slots; slot++)); do
    # The registers of a VF take 8 MiB of prefetchable addresses.
    qemu+=(-device "pcie-root-port,id=slot$slot,chassis=$slot,pref64-reserve=16M")
done
if [[ -n $console ]]; then
    path=${console//,/,,}
    qemu+=(-chardev "socket,id=console,path=$path,server=on,wait=off,logfile=$path.log" -serial chardev:console)
elif [[ -n $log ]]; then
    qemu+=(-chardev "file,id=console,path=${log//,/,,}" -serial chardev:console)
elif [[ -n $commands ]]; then
    qemu+=(-serial stdio)
else
    qemu+=(-chardev stdio,id=console,mux=on,signal=off -serial chardev:console)
fi
if [[ -n $agent ]]; then
    qemu+=(-chardev "socket,id=agent,path=${agent//,/,,}" -serial chardev:agent)
    parameters+=" vhca.agent"
fi
# The console's size has a serial port of its own, behind that of the agent.
if [[ -n $console ]]; then
    qemu+=(-chardev "socket,id=window,path=${console//,/,,}.window,server=on,wait=off" -serial chardev:window)
    window=ttyS1
    [[ -z $agent ]] || window=ttyS2
    parameters+=" vhca.window=$window"
fi
if [[ -n $netdev ]]; then
    # Guests of different names have different addresses on a network. The kernel is given to QEMU: no card has to boot it.
    mac=$(printf %s "$name" | md5sum | sed 's/\(..\)\(..\)\(..\).*/52:54:00:\1:\2:\3/')
    qemu+=(-netdev "$netdev,id=eth0" -device "virtio-net-pci,netdev=eth0,mac=$mac,romfile=")
fi
[[ -z $qmp ]] || qemu+=(-qmp "unix:${qmp//,/,,},server=on,wait=off")
[[ -z $incoming ]] || qemu+=(-incoming "file:${incoming//,/,,}")

pack() { "$cache/userland/usr/bin/busybox" cpio -o -H newc 2>/dev/null; }

# The kernel unpacks several archives in one file one after the other. QEMU reads a file that has no name any more.
if [[ -n $add ]]; then
    [[ -d $add ]] || fail "no folder $add"
    packed=$(mktemp)
    exec 7<"$packed"
    (cat "$initrd" && cd "$add" && find . | pack) >"$packed"
    rm "$packed"
    initrd=/dev/fd/7
fi

# The one that waits for a guest replaces nobody: exec makes the caller's child QEMU itself.
if [[ -z $commands ]]; then
    exec "${qemu[@]}" -initrd "$initrd" -append "$parameters $append"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s\n' "$commands" >"$work/commands"
cp "$initrd" "$work/initrd"
(cd "$work" && echo commands | pack) >>"$work/initrd"
status=0
timeout --foreground "$timeout" "${qemu[@]}" -initrd "$work/initrd" -append "$parameters $append" </dev/null |
    tr -d '\r' | tee "$work/output" || status=${PIPESTATUS[0]}
((status != 124)) || fail "the guest did not end within $timeout s"
((status == 0)) || fail "QEMU ended with status $status"
exited=$(sed -n 's/^vhca-guest: exit \([0-9]*\)$/\1/p' "$work/output" | tail -n 1)
[[ -n $exited ]] || fail "the guest ended before its commands did"
exit "$exited"
