//! The processor: ports, registers of devices, interrupts, and the functions that the compiler calls.

use core::arch::{asm, global_asm};
use core::ptr::{read_volatile, write_volatile};

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Ports of the VMM: address of a step's name; its length, which begins the step; a number for the VMM; a wish; an order; a
/// reset; the end, with 0 or the line of a failure, whose place is the last name.
const NAME: u16 = 0xe0;
const BEGIN: u16 = 0xe4;
const REPORT: u16 = 0xec;
const WISH: u16 = 0xf0;
const ORDER: u16 = 0xf4;
const RESET: u16 = 0xf8;
pub(crate) const END: u16 = 0xe8;

/// Registers of the local interrupt controller (Intel SDM 3A, 11.4.1).
const LAPIC_SPURIOUS: u64 = 0xfee0_00f0;
const LAPIC_ENABLE: u32 = 0x1ff;
/// Its timer: vector, which nobody counts; divisor, whose code this is for 1; and the count, of nanoseconds on KVM.
const LAPIC_TIMER: u64 = 0xfee0_0320;
const TIMER_VECTOR: u32 = 0x3f;
const LAPIC_DIVISOR: u64 = 0xfee0_03e0;
const BY_ONE: u32 = 0xb;
const LAPIC_COUNT: u64 = 0xfee0_0380;

/// Names a step that begins.
pub(crate) fn step(name: &str) {
    out32(NAME, name.as_ptr().addr() as u32);
    out32(BEGIN, name.len() as u32);
}

/// Reports a number to the VMM: how many cycles something takes, or what the next order depends on.
pub(crate) fn report(number: u32) {
    out32(REPORT, number);
}

/// Takes the next order of the VMM. The processor stands still until there is one.
pub(crate) fn order() -> u32 {
    in32(ORDER)
}

/// Has the VMM plug memory in, or out. It is done when this returns.
pub(crate) fn set_plugged(plugged: bool) {
    out32(WISH, u32::from(plugged));
}

/// Resets the function by the VMM. It is done when this returns.
pub(crate) fn reset_function() {
    out32(RESET, 0);
}

/// Returns the time, in cycles.
pub(crate) fn cycles() -> u64 {
    // SAFETY: every processor with long mode has this.
    unsafe { core::arch::x86_64::_rdtsc() }
}

pub(crate) fn end(line: u32) -> ! {
    out32(END, line);
    loop {
        // SAFETY: the processor stands still.
        unsafe { asm!("cli", "hlt") }
    }
}

pub(crate) fn out32(port: u16, value: u32) {
    // SAFETY: a port changes no memory.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack)) }
}

pub(crate) fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack)) }
    value
}

pub(crate) fn out16(port: u16, value: u16) {
    // SAFETY: as above.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack)) }
}

/// Reads a register.
pub(crate) fn read<T: FromBytes>(address: u64) -> T {
    // SAFETY: all addresses are mapped, and any bytes are a value.
    unsafe { read_volatile(address as *const T) }
}

/// Writes a register.
pub(crate) fn write<T: IntoBytes + Immutable>(address: u64, value: T) {
    // SAFETY: all addresses are mapped, and no object of this program is there.
    unsafe { write_volatile(address as *mut T, value) }
}

pub(crate) fn relax() {
    core::hint::spin_loop();
}

// A handler counts its vector, and tells the interrupt controller that it is done. It is left without `iretq`: return
// address and flags go to the interrupted stack. That is within `wait_for_interrupt`, so rax, rcx and rdx are free.
global_asm!(
    ".balign 16",
    "HANDLERS:",
    ".set vector, 0",
    ".rept 256",
    ".balign 16",
    "mov eax, vector",
    "jmp 2f",
    ".set vector, vector + 1",
    ".endr",
    "2:",
    "lea rcx, [rip + COUNTS]",
    "inc dword ptr [rcx + 4 * rax]",
    "mov ecx, 0xfee000b0",
    "mov dword ptr [rcx], 0",
    "mov rcx, [rsp]",
    "mov rdx, [rsp + 16]",
    "mov rsp, [rsp + 24]",
    "push rcx",
    "push rdx",
    "popfq",
    "ret",
    ".bss",
    ".balign 8",
    "COUNTS: .skip 1024",
    "IDT: .skip 4096",
    ".text",
);

unsafe extern "C" {
    static HANDLERS: [[u8; 16]; 256];
    static COUNTS: [u32; 256];
    static mut IDT: [[u64; 2]; 256];
}

/// Takes interrupts from here on, while it waits for one. Vectors of exceptions have no handler: they end the VM.
pub(crate) fn set_up() {
    const PRESENT: u64 = 0x8e00 << 32 | 8 << 16;
    #[repr(C, packed)]
    struct Table(u16, u64);
    let table = Table(4095, (&raw const IDT).addr() as u64);
    for vector in 32..256 {
        // SAFETY: the table has 256 entries, and interrupts are off.
        unsafe {
            let handler = (&raw const HANDLERS[vector]).addr() as u64;
            let low = handler & 0xffff | PRESENT | (handler >> 16 & 0xffff) << 48;
            (&raw mut IDT[vector]).write([low, handler >> 32]);
        }
    }
    // SAFETY: the table is of the processor's form, and stays.
    unsafe { asm!("lidt [{}]", in(reg) &raw const table) }
    write(LAPIC_SPURIOUS, LAPIC_ENABLE);
}

/// Sleeps until an interrupt. One that came before ends it at once.
pub(crate) fn wait_for_interrupt() {
    // SAFETY: handlers change these registers, and the stack below. The block uses the stack, so nothing is kept there.
    unsafe { asm!("sti", "hlt", "cli", out("rax") _, out("rcx") _, out("rdx") _) }
}

/// Sleeps until an interrupt, or for so many nanoseconds.
pub(crate) fn sleep(nanoseconds: u32) {
    write(LAPIC_TIMER, TIMER_VECTOR);
    write(LAPIC_DIVISOR, BY_ONE);
    write(LAPIC_COUNT, nanoseconds.max(1));
    wait_for_interrupt();
    write(LAPIC_COUNT, 0_u32);
}

/// Returns how often a vector has interrupted.
pub(crate) fn interrupts(vector: u8) -> u32 {
    // SAFETY: it is in the table.
    unsafe { read_volatile(&raw const COUNTS[usize::from(vector)]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: as the caller says.
    unsafe {
        asm!("rep movsq", "mov rcx, {rest}", "rep movsb", rest = in(reg) len % 8,
            inout("rcx") len / 8 => _, inout("rdi") to => _, inout("rsi") from => _);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    let bytes = (byte as u8 as u64).wrapping_mul(0x0101_0101_0101_0101);
    // SAFETY: as the caller says.
    unsafe {
        asm!("rep stosq", "mov rcx, {rest}", "rep stosb", rest = in(reg) len % 8,
            inout("rcx") len / 8 => _, inout("rdi") to => _, in("rax") bytes);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, len: usize) -> i32 {
    let mut left = len / 8;
    // SAFETY: as the caller says.
    unsafe {
        asm!("repe cmpsq", inout("rcx") left, inout("rsi") one => _, inout("rdi") other => _);
    }
    // The last word that was compared is the one that may differ.
    let same = (len / 8 - left).saturating_sub(1) * 8;
    for at in same..len {
        // SAFETY: as the caller says. Volatile, so that this does not become a call of itself.
        let (a, b) = unsafe { (read_volatile(one.add(at)), read_volatile(other.add(at))) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= len {
        // SAFETY: as the caller says. What a step overwrites has been read.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: as the caller says. From the last byte on, words first, which are at most a word's length off the end.
    unsafe {
        asm!("std", "rep movsb", "lea rdi, [rdi - 7]", "lea rsi, [rsi - 7]", "mov rcx, {words}", "rep movsq", "cld",
            words = in(reg) len / 8, inout("rcx") len % 8 => _,
            inout("rdi") to.wrapping_add(len).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(len).wrapping_sub(1) => _);
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, len: usize) -> i32 {
    // SAFETY: as the caller says.
    unsafe { memcmp(one, other, len) }
}

/// Called where a panic would unwind. None does.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    end(line!())
}
