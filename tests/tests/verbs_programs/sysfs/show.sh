# Lists the sysfs of an RDMA device: show NAME prints a section for each folder, with a line for each folder, file (with its text,
# lines joined by "|") and link below it. Of tables and of the messages of the CM it lists the first entries alone.
#
# The recorded trees beside it are those of stock Debian 6.1 kernels:
#   tests/guest/boot.sh --netdev user -c "$(cat show.sh); modprobe rdma_rxe; ip link set eth0 up
#       rdma link add rxe0 type rxe netdev eth0; modprobe ib_uverbs; show rxe0"
#   tests/guest/boot.sh -v VF.sock -c "$(cat show.sh); sleep 3; show mlx4_0"
walk() {
    for place in "$1"/*; do
        [ -e "$place" ] || [ -L "$place" ] || continue
        name=${place#./}
        case $name in
        gids/[1-9]* | */gids/[1-9]* | */ndevs/[1-9]* | */types/[1-9]* | */pkeys/[1-9]*) continue ;;
        */cm_[rt]x_*/[b-z]* | net/* | msi_irqs/* | power/* | infiniband/* | infiniband_*/*) continue ;;
        esac
        mode=$(stat -c '%A' "$place")
        if [ -L "$place" ]; then
            echo "$mode $name -> $(readlink "$place")"
        elif [ -d "$place" ]; then
            echo "$mode $name"
            walk "$place"
        else
            case $name in
            config | remove | rescan | reset | resource[0-9]*) echo "$mode $name" ;;
            *) echo "$mode $name = $(head -c 200 "$place" 2>/dev/null | tr '\n' '|')" ;;
            esac
        fi
    done
}
show() {
    echo '[infiniband]'
    cd "/sys/class/infiniband/$1/" && walk .
    if [ -d device ]; then
        echo '[function]'
        cd -P device/ && walk .
    fi
    echo '[infiniband_verbs]'
    cd /sys/class/infiniband_verbs/uverbs0/ && walk .
}
