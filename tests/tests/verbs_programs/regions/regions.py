"""Registers memory of each kind, and prints what became of it: ok, or the error's name."""

import ctypes
import errno
import mmap
import sys
import tempfile

from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
)
from pyverbs.mr import MR
from pyverbs.pd import PD

PAGE = 4096
WRITE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def mapped(pages, rights, fd=-1):
    kind = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return libc.mmap(None, pages * PAGE, rights, kind, fd, 0)


def registered(pd, name, address, length, access):
    try:
        MR(pd, length, access, address=address).close()
        outcome = "ok"
    except PyverbsRDMAError as error:
        outcome = errno.errorcode[error.error_code]
    print(f"{name}: {outcome}", flush=True)


both, read = mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ
context = Context(name=sys.argv[1])
pd = PD(context)

plain = mapped(4, both)
registered(pd, "plain memory", plain, 4 * PAGE, WRITE)
registered(pd, "memory of odd bounds", plain + 100, 3 * PAGE, WRITE)

gone = mapped(4, both)
libc.munmap(gone, 4 * PAGE)
registered(pd, "unmapped", gone, 4 * PAGE, IBV_ACCESS_REMOTE_READ)

half = mapped(4, both)
libc.munmap(half + 2 * PAGE, 2 * PAGE)
registered(pd, "half mapped", half, 4 * PAGE, WRITE)
registered(pd, "the half that is mapped", half, 2 * PAGE, WRITE)

none = mapped(4, 0)
registered(pd, "without rights", none, 4 * PAGE, IBV_ACCESS_REMOTE_READ)

with tempfile.TemporaryFile() as file:
    file.truncate(PAGE)
    constant = mapped(1, read, file.fileno())
    registered(pd, "read-only file, to be read", constant, PAGE, IBV_ACCESS_REMOTE_READ)
    registered(pd, "read-only file, to be written", constant, PAGE, IBV_ACCESS_LOCAL_WRITE)
    registered(pd, "read-only file, to be written remotely", constant, PAGE, WRITE)

mixed = mapped(3, both)
libc.mprotect(mixed + PAGE, PAGE, read)
registered(pd, "one page of three read-only", mixed, 3 * PAGE, WRITE)
libc.mprotect(mixed + PAGE, PAGE, both)
registered(pd, "the same after mprotect", mixed, 3 * PAGE, WRITE)

sparse = mapped(1024, both)
registered(pd, "sparse", sparse, 1024 * PAGE, WRITE)
resident = ctypes.create_string_buffer(1024)
libc.mincore(sparse, 1024 * PAGE, resident)
print("pages of sparse:", sum(byte & 1 for byte in resident.raw))

registered(pd, "on demand", gone, 4 * PAGE, WRITE | IBV_ACCESS_ON_DEMAND)
registered(pd, "beyond all addresses", plain, (1 << 64) - PAGE, WRITE)
