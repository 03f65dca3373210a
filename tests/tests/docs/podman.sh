# Stands in for `podman run`: namespaces and a root of their own with this machine's programs, in place of those of an image.
set -eu
[ "$1" = run ] && shift
volumes='' user='' is_read_only=false
environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin
while :; do
    case $1 in
    --rm) shift ;;
    --network) [ "$2" = none ] && shift 2 ;;
    --cap-drop) [ "$2" = ALL ] && shift 2 ;;
    --security-opt) [ "$2" = no-new-privileges ] && shift 2 ;;
    --read-only) is_read_only=true && shift ;;
    --user) user=$2 && shift 2 ;;
    -e) environment="$environment $2" && shift 2 ;;
    -v) volumes="$volumes $2" && shift 2 ;;
    -*) echo "podman: $1 is unknown here" >&2 && exit 125 ;;
    *) break ;;
    esac
done
shift

# Root of the machine runs programs as the user; others have the number in a namespace alone.
own='' become='setpriv --no-new-privs --bounding-set=-all --inh-caps=-all'
if [ "$(id -u)" != 0 ]; then
    own=-Ur become=${user:+unshare -U --map-user=$user}
elif [ "$user" ]; then
    become="$become --reuid $user --regid $user --clear-groups"
fi
if ! unshare $own -mpfnui true 2>/dev/null; then
    echo "not run: a container, since namespaces are forbidden here" >&2
    exit 0
fi
export volumes environment become is_read_only
exec unshare $own -mpfnui --kill-child sh -eu -c '
    root=$(mktemp -d)
    mount -t tmpfs tmpfs "$root"
    for folder in bin sbin lib lib64; do cp -P "/$folder" "$root"; done
    mkdir "$root/usr" "$root/etc" "$root/proc" "$root/dev" "$root/tmp" "$root/run"
    mount --rbind /usr "$root/usr"
    mount --rbind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    cp -r /etc/ld.so.cache /etc/passwd /etc/libibverbs.d "$root/etc"
    for volume in $volumes; do
        from=${volume%%:*} to=${volume#*:}
        to=$root${to%:ro}
        if [ -d "$from" ]; then mkdir -p "$to"; else touch "$to"; fi
        mount --bind "$from" "$to"
        case $volume in *:ro) mount -o remount,bind,ro "$to" ;; esac
    done
    if "$is_read_only"; then mount -o remount,ro "$root"; fi
    cd "$root"
    pivot_root . .
    umount -l .
    cd /
    exec env -i $environment $become "$@"' sh "$@"
