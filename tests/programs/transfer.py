"""Moves 1 MiB both ways between two processes with Mooncake's transfer engine, by RDMA.

Usage: transfer.py target|initiator FILE; the target leaves its segment's name and address in FILE.
"""

import os
import sys
import time

import numpy
from mooncake.engine import TransferEngine

SIZE = 1 << 20
LIMIT = 60

numbers = numpy.arange(SIZE, dtype=numpy.uint64)
sent_by_target = numbers.astype(numpy.uint8)
sent_by_initiator = (numbers * 7).astype(numpy.uint8)


def wait_until(holds, subject):
    end = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"{subject} did not come")
        time.sleep(0.01)


role, path = sys.argv[1:]
engine = TransferEngine()
if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") != 0:
    sys.exit("the engine does not start")
buffer = numpy.zeros(SIZE, dtype=numpy.uint8)
if engine.register_memory(buffer.ctypes.data, SIZE) != 0:
    sys.exit("the memory is not registered")
if role == "target":
    buffer[:] = sent_by_target
    with open(path + ".new", "w") as file:
        file.write(f"127.0.0.1:{engine.get_rpc_port()} {buffer.ctypes.data}")
    os.rename(path + ".new", path)
    wait_until(lambda: (buffer == sent_by_initiator).all(), "the initiator's bytes")
    print("written by RDMA")
else:
    wait_until(lambda: os.path.exists(path), "the target's address")
    with open(path) as file:
        segment, address = file.read().split()
    if engine.transfer_sync_read(segment, buffer.ctypes.data, int(address), SIZE) != 0:
        sys.exit("the read failed")
    if not (buffer == sent_by_target).all():
        sys.exit("the bytes that were read differ")
    buffer[:] = sent_by_initiator
    if engine.transfer_sync_write(segment, buffer.ctypes.data, int(address), SIZE) != 0:
        sys.exit("the write failed")
    print("read and written by RDMA")
