//! Memory behind the program: its heap, and pages for the device.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

use mlx4_driver::{DmaMemory, PAGE};

/// The first address of the heap, behind the stack, and its end.
const BEGIN: usize = 0x20_0000;
static END: AtomicUsize = AtomicUsize::new(BEGIN);

/// The next page of memory that is plugged in, from which the driver takes pages if it is not 0.
static PLUGGED: AtomicUsize = AtomicUsize::new(0);

/// Sets the end of the heap's memory.
pub(crate) fn set_up(end: usize) {
    END.store(end, Ordering::Relaxed);
}

/// Sets the address from which the driver takes its pages.
pub(crate) fn allocate_from(address: usize) {
    PLUGGED.store(address, Ordering::Relaxed);
}

/// Bytes of the smallest piece.
const SMALLEST: usize = 16;

/// Bytes at most of what is copied as entries of queues are: backwards, by words or halves of words.
const ENTRY: usize = 128;
const WORD: usize = 8;
const HALF: usize = 4;

/// A heap of pieces whose sizes are powers of two, each at a multiple of its size. Free pieces of a size are a list.
struct Heap {
    free: UnsafeCell<[*mut u8; usize::BITS as usize]>,
    next: UnsafeCell<usize>,
}

// SAFETY: there is one processor, and no handler allocates.
unsafe impl Sync for Heap {}

#[global_allocator]
static MEMORY: Heap = Heap {
    free: UnsafeCell::new([ptr::null_mut(); usize::BITS as usize]),
    next: UnsafeCell::new(BEGIN),
};

fn log_size(layout: Layout) -> u32 {
    let bytes = layout.size().max(layout.align()).max(SMALLEST);
    bytes.next_power_of_two().ilog2()
}

// SAFETY: a piece is as large as its layout says and aligned to its size, and is given out once until it is freed.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let log = log_size(layout);
        // SAFETY: nobody else has the lists now, and a free piece begins with the address of the next one.
        unsafe {
            let list = &mut (*self.free.get())[log as usize];
            if !list.is_null() {
                let piece = *list;
                *list = piece.cast::<*mut u8>().read();
                return piece;
            }
            let piece = (*self.next.get()).next_multiple_of(1 << log);
            if END.load(Ordering::Relaxed) < piece + (1 << log) {
                return ptr::null_mut();
            }
            *self.next.get() = piece + (1 << log);
            ptr::with_exposed_provenance_mut(piece)
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: nobody has the piece any more.
        unsafe {
            let list = &mut (*self.free.get())[log_size(layout) as usize];
            piece.cast::<*mut u8>().write(*list);
            *list = piece;
        }
    }
}

/// Pages of the heap, or of memory that is plugged in, which are not given out again. All memory is the device's to reach.
#[derive(Debug)]
pub(crate) struct Pages;

fn pages(count: usize) -> Layout {
    let bytes = (count * PAGE).next_power_of_two();
    Layout::from_size_align(bytes, bytes).unwrap()
}

impl DmaMemory for Pages {
    fn allocate_contiguous(&self, count: usize, align: usize) -> u64 {
        assert!(align <= count.next_power_of_two());
        let plugged = PLUGGED.load(Ordering::Relaxed);
        if plugged != 0 {
            let first = plugged.next_multiple_of(align * PAGE);
            PLUGGED.store(first + count * PAGE, Ordering::Relaxed);
            return first as u64;
        }
        // SAFETY: there is a page at least.
        let piece = unsafe { alloc::alloc::alloc_zeroed(pages(count)) };
        assert!(!piece.is_null());
        piece.expose_provenance() as u64
    }

    fn free(&self, addr: u64, count: usize) {
        if addr as usize >= END.load(Ordering::Relaxed) {
            return;
        }
        let piece = ptr::with_exposed_provenance_mut(addr as usize);
        // SAFETY: it was allocated with this layout.
        unsafe { alloc::alloc::dealloc(piece, pages(count)) }
    }

    fn read(&self, addr: u64, out: &mut [u8]) {
        let from: *const u8 = ptr::with_exposed_provenance(addr as usize);
        copy(from, out.as_mut_ptr(), out.len(), addr as usize);
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        let to = ptr::with_exposed_provenance_mut(addr as usize);
        copy(bytes.as_ptr(), to, bytes.len(), addr as usize);
    }
}

/// Copies bytes from or to memory of the device at `at`. Entries and doorbell records go backwards, each aligned word at once.
fn copy(from: *const u8, to: *mut u8, len: usize, at: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: both sides have so many bytes, and the device's are no object of this program.
    unsafe {
        match (at | len) % WORD {
            _ if len > ENTRY => ptr::copy_nonoverlapping(from, to, len),
            0 => copy_words::<u64>(from.cast(), to.cast(), len / WORD),
            HALF => copy_words::<u32>(from.cast(), to.cast(), len / HALF),
            _ => ptr::copy_nonoverlapping(from, to, len),
        }
    }
    compiler_fence(Ordering::SeqCst);
}

/// Copies words, from the last to the first.
///
/// # Safety
/// Both sides have so many words.
unsafe fn copy_words<T>(from: *const T, to: *mut T, count: usize) {
    for nth in (0..count).rev() {
        // SAFETY: as the caller says.
        unsafe { to.add(nth).write_unaligned(from.add(nth).read_unaligned()) }
        compiler_fence(Ordering::SeqCst);
    }
}
