"""Passes a file of a file system in user space, whose server never answers a close, to Unix sockets.

To be run in a user and mount namespace of its own (unshare -Urm): fuse.py FOLDER SOCKET... A socket is KIND:PATH, with KIND stream
or packets. Says "passed" when each has the file. When its standard input ends, it answers whoever waits, and ends.
"""
import ctypes
import errno
import os
import socket
import struct
import sys
import threading

LOOKUP, FORGET, GETATTR, OPEN, RELEASE, INIT, INTERRUPT = 1, 2, 3, 14, 18, 26, 36
ROOT, FILE = 1, 2


def attributes(node):
    mode = 0o040755 if node == ROOT else 0o100644
    return struct.pack("<6Q10I", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node):
    """Returns the answer to a request, None for those that get none."""
    if opcode == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
    if opcode == LOOKUP:
        return struct.pack("<4Q2I", FILE, 1, 3600, 3600, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return struct.pack("<Q2I", 3600, 0, 0) + attributes(node)
    if opcode == OPEN:
        return struct.pack("<Q2I", 1, 0, 0)
    return None


class Server:
    def __init__(self, device):
        self.device, self.waiting, self.ends = device, [], False
        self.lock = threading.Lock()

    def run(self):
        while True:
            request = os.read(self.device, 1 << 17)
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            body = answer(opcode, node)
            with self.lock:
                if body is not None:
                    self.reply(unique, 0, body)
                elif opcode not in (FORGET, INTERRUPT):
                    self.waiting.append(unique)
                    self.refuse()

    def end(self):
        with self.lock:
            self.ends = True
            self.refuse()

    def refuse(self):
        while self.ends and self.waiting:
            self.reply(self.waiting.pop(), -errno.EIO, b"")

    def reply(self, unique, error, body):
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        except OSError:
            pass  # Nobody waits for it any more.


def main():
    folder, sockets = sys.argv[1], sys.argv[2:]
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    if libc.mount(b"vhca-test", folder.encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    server = Server(device)
    threading.Thread(target=server.run, daemon=True).start()
    file = os.open(f"{folder}/file", os.O_RDWR)
    kept = []
    for name in sockets:
        kind, path = name.split(":", 1)
        kind = socket.SOCK_STREAM if kind == "stream" else socket.SOCK_SEQPACKET
        client = socket.socket(socket.AF_UNIX, kind)
        client.connect(path)
        try:
            socket.send_fds(client, [bytes(16)], [file] * 3)
        except PermissionError:
            pass  # The socket takes none, and the kernel has SO_PASSRIGHTS.
        kept.append(client)
    print("passed", flush=True)
    sys.stdin.read()
    server.end()
    os.close(file)
    os._exit(0)


main()
