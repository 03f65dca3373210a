# Runs the programs of this machine by themselves and beside the library, with nothing of the machine to write to, and prints those
# that differ in status or output, and the number of programs that do not.
#
# Usage, in namespaces of its own: programs_beside.sh FOLDER LIBRARY SOCKET [PACKAGE...]
#   FOLDER   can be written
#   PACKAGE  run the programs of these packages alone
set -u
export FOLDER=$1 LIBRARY=$2 SOCKET=$3 HOME=$1 TMPDIR=$1
shift 3
mount --bind "$FOLDER" "$FOLDER" && mount -o remount,bind,ro / || exit 1
cd "$FOLDER"

# By way of a file: a daemon that a program leaves would keep a pipe open.
alone() {
    timeout -k 1 5 "$@" --version </dev/null >"$BASHPID.output" 2>&1
    local status=$?
    cat "$BASHPID.output"
    echo "status $status"
}
beside() { alone env LD_PRELOAD="$LIBRARY" VHCA_UMAD_SOCKET="$SOCKET" "$1"; }
# Some programs print something else each time: an output that the program had by itself once is no difference.
one() {
    local first second
    first=$(alone "$1") second=$(beside "$1")
    for _ in 1 2 3 4 5; do
        [[ $first == "$second" ]] && echo "$1" >>same && return
        first+=$(alone "$1")
        second=$(beside "$1")
        [[ $first == *"$second"* ]] && echo "$1" >>same && return
    done
    printf 'DIFFERS %s\n%s\n-- beside the library:\n%s\n' "$1" "$first" "$second"
}
export -f alone beside one

programs() {
    if (($#)); then
        dpkg -L "$@" | grep -E '^(/usr)?/bin/.'
    else
        printf '%s\n' /usr/bin/*
    fi
}
programs "$@" | while read -r program; do
    # It is for the device that the library shows.
    [[ -f $program && -x $program && $program != */ibv_devices ]] || continue
    printf '%s\0' "$program"
done | xargs -0 -P 4 -n 1 bash -c 'one "$1" 2>/dev/null' one
echo "same: $(wc -l <same)"
