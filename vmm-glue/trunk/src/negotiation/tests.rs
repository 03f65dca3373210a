use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use super::*;
use crate::ring::memory;

/// Requests of vhost-user (`enum VhostUserRequest`).
const SET_FEATURES: u32 = 2;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const GET_INFLIGHT_FD: u32 = 31;

/// Sends one message to a back end, and returns the words with which it ends the set-up.
fn refusal(request: u32, body: &[u8], descriptors: &[RawFd]) -> String {
    let (front_end, back_end) = UnixStream::pair().unwrap();
    let size = u32::try_from(body.len()).unwrap();
    let header = [request, 1, size].map(u32::to_ne_bytes).concat();
    front_end
        .send_with_fds(&[&header[..]], descriptors)
        .unwrap();
    front_end.send_with_fds(&[body], &[]).unwrap();
    drop(front_end);
    accept(back_end).unwrap_err().to_string()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Returns a table of regions of so many bytes at 1 MiB each.
fn table(bytes: &[u64], offset: u64) -> Vec<u8> {
    let count = u32::try_from(bytes.len()).unwrap();
    let regions = bytes
        .iter()
        .flat_map(|bytes| [1 << 20, *bytes, 1 << 20, offset]);
    [
        words(&[count, 0]),
        regions.flat_map(u64::to_ne_bytes).collect(),
    ]
    .concat()
}

/// Returns a memfd of so many bytes, with seals.
fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn memory_that_the_front_end_could_take_away_is_refused_with_the_reason() {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
    let at =
        |file: &OwnedFd, bytes| refusal(SET_MEM_TABLE, &table(&[bytes], 0), &[file.as_raw_fd()]);
    let own = memory::create(4096).unwrap();
    memory::check(&own, 4096).unwrap();
    for (words, file, bytes) in [
        ("sealed", memfd(4096, SealFlags::empty()), 4096),
        ("sealed", memfd(4096, SealFlags::SHRINK), 4096),
        (
            "sealed",
            memfd(4096, SealFlags::GROW | SealFlags::SEAL),
            4096,
        ),
        ("8 MiB", memfd(4096, SEALS), 4097),
        ("8 MiB", memfd((8 << 20) + 1, SEALS), 4096),
        (
            "another file",
            File::open("/proc/self/exe").unwrap().into(),
            4096,
        ),
        ("another file", UnixStream::pair().unwrap().0.into(), 4096),
    ] {
        let refused = at(&file, bytes);
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let pair = [own.as_raw_fd(), own.as_raw_fd()];
    refusal(SET_MEM_TABLE, &table(&[4096, 4096], 0), &pair);
    refusal(SET_MEM_TABLE, &table(&[2048], 2048), &pair[..1]);
}

#[test]
fn messages_that_no_trunk_has_end_the_set_up() {
    let file = memory::create(4096).unwrap();
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    let [file, event] = [&file, &event].map(AsRawFd::as_raw_fd);
    let index = |index: u64| index.to_ne_bytes();
    // With a right one the connection ends behind it.
    let whole = refusal(SET_VRING_CALL, &index(3), &[event]);
    for (request, body, descriptors) in [
        (SET_FEATURES, &(1_u64 << 32).to_ne_bytes()[..], &[][..]),
        (SET_VRING_NUM, &words(&[4, 32]), &[]),
        (SET_VRING_NUM, &words(&[0, 48]), &[]),
        (SET_VRING_NUM, &words(&[0, 1 << 16]), &[]),
        (SET_VRING_BASE, &words(&[0, 1]), &[]),
        (SET_VRING_KICK, &index(4), &[event]),
        (SET_VRING_KICK, &index(0), &[file]),
        (SET_VRING_KICK, &index(0x100), &[]),
        (GET_INFLIGHT_FD, &[0; 24], &[]),
        (1000, &[], &[]),
    ] {
        let refused = refusal(request, body, descriptors);
        assert_ne!(refused, whole, "{request} {body:?}");
    }
}

#[test]
fn a_front_end_says_what_a_listener_that_is_no_trunk_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let answers = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let (mut request, reply) = ([0; 12], words(&[1, 5, 8, 1 << 30, 0]));
        io::Read::read_exact(&mut &stream, &mut request).unwrap();
        io::Write::write_all(&mut &stream, &reply).unwrap();
    });
    let refused = connect(&path).unwrap_err().to_string();
    assert!(refused.contains("event indices"), "{refused}");
    answers.join().unwrap();
}
