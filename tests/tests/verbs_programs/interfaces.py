# Prints the interfaces of the process by each way to ask for them: the names of the kernel's are left out, but for the loopback.

import array
import ctypes
import fcntl
import socket
import struct

libc = ctypes.CDLL(None, use_errno=True)


class Address(ctypes.Structure):
    _fields_ = [("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 30)]


class Entry(ctypes.Structure):
    pass


Entry._fields_ = [
    ("next", ctypes.POINTER(Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(Address)),
    ("netmask", ctypes.POINTER(Address)),
    ("broadcast", ctypes.POINTER(Address)),
    ("data", ctypes.c_void_p),
]


def shown(address):
    if not address:
        return "none"
    if address.contents.family == socket.AF_INET:
        return socket.inet_ntoa(bytes(address.contents.data[2:6]))
    return "hardware of %d bytes" % address.contents.data[9]


def listed():
    found = ctypes.POINTER(Entry)()
    assert libc.getifaddrs(ctypes.byref(found)) == 0
    entry, names = found, []
    while entry:
        is_link = entry.contents.address and entry.contents.address.contents.family == socket.AF_PACKET
        name = entry.contents.name.decode()
        if name.startswith("vhca"):
            addresses = entry.contents.address, entry.contents.netmask, entry.contents.broadcast
            print("getifaddrs", name, hex(entry.contents.flags), *map(shown, addresses))
        elif name == "lo" and is_link:
            print("getifaddrs lo")
        names.append(name)
        entry = entry.contents.next
    libc.freeifaddrs(found)
    print("behind the others:", "vhca1" not in names or names.index("vhca1") == len(names) - 2)


for _ in range(2):
    listed()
names = [name for _, name in socket.if_nameindex()]
print("if_nameindex", "lo" in names, names[-1] == "vhca1")
inet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
inet6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)


def asked(request, name, on=inet):
    try:
        return fcntl.ioctl(on, request, struct.pack("16s24x", name.encode()))[16:]
    except OSError as error:
        return error


def address(answer):
    return answer.errno if isinstance(answer, OSError) else socket.inet_ntoa(answer[4:8])


def integer(answer):
    return answer.errno if isinstance(answer, OSError) else struct.unpack("i", answer[:4])[0]


print("addresses", *[address(asked(request, "vhca1")) for request in (0x8915, 0x891B, 0x8919)])
print("of lo", address(asked(0x8915, "lo")), integer(asked(0x8933, "lo")) == socket.if_nametoindex("lo"))
print("of no interface", integer(asked(0x8933, "vhca7")))
is_refused = isinstance(asked(0x8915, "vhca1", inet6), OSError)
print("mtu", integer(asked(0x8921, "vhca1")), integer(asked(0x8921, "vhca1", inet6)), is_refused)
hardware = asked(0x8927, "vhca1")
print("hardware", integer(hardware) if isinstance(hardware, OSError) else struct.unpack("H", hardware[:2])[0])
flags = asked(0x8913, "vhca1")
print("flags", integer(flags) if isinstance(flags, OSError) else hex(struct.unpack("H", flags[:2])[0]))
buffer = array.array("B", bytes(40 * 64))
conf = fcntl.ioctl(inet, 0x8912, struct.pack("iP", len(buffer), buffer.buffer_info()[0]))
length = struct.unpack("iP", conf)[0]
entries = [buffer[at : at + 40].tobytes() for at in range(0, length, 40)]
names = [entry[:16].rstrip(b"\0").decode() for entry in entries]
print("list", "lo" in names, [socket.inet_ntoa(entry[20:24]) for entry in entries if entry.startswith(b"vhca")])
counted = struct.unpack("iP", fcntl.ioctl(inet, 0x8912, struct.pack("iP", 0, 0)))[0]
print("counted", counted == length)
try:
    index = socket.if_nametoindex("vhca1")
    by_request = fcntl.ioctl(inet, 0x8910, struct.pack("16xi20x", index))[:16].rstrip(b"\0")
    print("index", index, socket.if_indextoname(index), by_request.decode(), integer(asked(0x8933, "vhca1")) == index)
except OSError:
    print("no index")
