#!/bin/sh
# Takes the place of ssh in scripts that start programs on other hosts: runs the command on the VF of an address.
# Usage: ssh [-n] [-o OPTION]... 127.77.HOST.VF COMMAND...
set -eu
while :; do
    case $1 in
    -o) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
address=$1
shift
vf=${address##*.}
case $address in
127.77.1.*) node=H1-1/$vf ;;
127.77.2.*) node=H1-2/$vf ;;
127.77.3.*) node=H2-1/$vf ;;
127.77.4.*) node=H2-2/$vf ;;
*)
    echo "ssh.sh: no VF has the address $address" >&2
    exit 255
    ;;
esac
exec vhca run --node "$node" -- bash -c "$*"
