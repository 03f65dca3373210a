//! Whether a VMM shares the pages of a file, or has copies of its own.
//!
//! A VMM that maps its memory file privately (QEMU without `share=on`) still gives its descriptor, though what the
//! guest writes is not in the file. The protocol does not tell; the kernel does (`/proc/PID/maps`).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{major, minor};
use rustix::process::Pid;

use vhca_receiver::Receiver;

use super::file::FileId;

/// The receiver, which looks into other processes: one that Landlock confines may not.
static RECEIVER: OnceLock<Receiver> = OnceLock::new();

/// Sets the receiver that is asked from now on; one that was set before stays.
pub fn look_by(receiver: &Receiver) {
    let _ = RECEIVER.set(receiver.clone());
}

/// Looks whether a process has a file mapped privately and nowhere shared, on a thread of its own: the process can
/// have this wait for as long as it wants. What is seen, is seen later; nothing is if another look has not ended yet.
pub(super) fn look(pid: Pid, file: FileId, is_busy: &Arc<AtomicBool>) -> Arc<AtomicBool> {
    let is_private = Arc::new(AtomicBool::new(false));
    if is_busy.swap(true, Ordering::AcqRel) {
        return is_private;
    }
    let (found, busy) = (is_private.clone(), is_busy.clone());
    let look = move || {
        let pid = pid.as_raw_nonzero().get();
        let FileId { device, inode } = file;
        let is_private = match RECEIVER.get() {
            Some(receiver) => receiver.is_mapped_privately(pid, device, inode),
            None => is_mapped_privately(pid, device, inode),
        };
        if is_private {
            log::warn!(
                "vfio-user: process {pid} does not share its guest's memory: it lacks share=on"
            );
            found.store(true, Ordering::Release);
        }
        busy.store(false, Ordering::Release);
    };
    let spawned = std::thread::Builder::new()
        .name("vmm-maps".to_owned())
        .spawn(look);
    if spawned.is_err() {
        is_busy.store(false, Ordering::Release);
    }
    is_private
}

/// Returns `true` if a process has a file, by its device and inode, mapped privately and nowhere shared. Waits for the process
/// as long as that likes.
#[must_use]
pub fn is_mapped_privately(pid: i32, device: u64, inode: u64) -> bool {
    let Ok(maps) = File::open(format!("/proc/{pid}/maps")) else {
        return false;
    };
    let file = FileId { device, inode };
    let lines = BufReader::new(maps).lines().map_while(Result::ok);
    let kinds: Vec<bool> = lines.filter_map(|line| kind_of(&line, file)).collect();
    !kinds.is_empty() && kinds.iter().all(|is_private| *is_private)
}

/// Whether a line of `maps` that is of a file says that it is private.
fn kind_of(line: &str, file: FileId) -> Option<bool> {
    let mut fields = line.split_ascii_whitespace();
    let rights = fields.nth(1)?;
    let (upper, lower) = fields.nth(1)?.split_once(':')?;
    let inode: u64 = fields.next()?.parse().ok()?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let is_it = inode == file.inode
        && number(upper)? == major(file.device)
        && number(lower)? == minor(file.device);
    is_it.then(|| rights.ends_with('p'))
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn a_process_that_maps_a_file_privately_is_found_out_and_one_that_shares_it_is_not() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        use vm_memory::FileOffset;
        use vm_memory::mmap::MmapRegion;

        let own = rustix::process::getpid();
        let pid = own.as_raw_nonzero().get();
        for (flags, expected) in [(libc::MAP_PRIVATE, true), (libc::MAP_SHARED, false)] {
            let fd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&fd, 4096).unwrap();
            let file = super::super::file::id(&fd).unwrap();
            let looks = || is_mapped_privately(pid, file.device, file.inode);
            assert!(!looks(), "not mapped at all");
            let offset = FileOffset::new(fd.into(), 0);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = MmapRegion::<()>::build(Some(offset), 4096, rights, flags).unwrap();
            let looked = look(own, file, &Arc::default());
            let begun = std::time::Instant::now();
            while expected && !looked.load(Ordering::Acquire) {
                assert!(begun.elapsed().as_secs() < 20);
            }
            assert_eq!(looks(), expected);
            drop(mapped);
        }
    }

    #[test]
    fn a_line_of_the_file_tells_how_it_is_mapped_and_others_do_not() {
        let file = FileId {
            device: makedev(0, 1),
            inode: 1049,
        };
        let line = |rights: &str, of: &str| format!("7f01-7f02 {rights} 00000000 {of} /memfd:ram");
        assert_eq!(kind_of(&line("rw-p", "00:01 1049"), file), Some(true));
        assert_eq!(kind_of(&line("rw-s", "00:01 1049"), file), Some(false));
        for other in [
            "00:01 1050",
            "00:02 1049",
            "fe:01 1049",
            "",
            "00:01",
            "x:y z",
        ] {
            assert_eq!(kind_of(&line("rw-p", other), file), None, "{other}");
        }
        assert_eq!(kind_of("", file), None);
    }
}
