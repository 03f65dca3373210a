//! Registration of memory: the library refuses memory that the program does not have, as the kernel does when it pins pages.
//! The service cannot, since it reaches all memory of the process, whatever the rights of its pages.

use rustix::io::Errno;
use verbs_link::abi::memory::RegMr;
use verbs_link::abi::{CommandHeader, command};
use zerocopy::FromBytes;

use crate::memory_map;

/// Rights of a region (`IBV_ACCESS_*`).
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 1 << 1;
const REMOTE_ATOMIC: u32 = 1 << 3;
const ON_DEMAND: u32 = 1 << 6;

/// Refuses a command that registers memory which is not all there, or not with the rights of the region.
///
/// # Errors
/// [`Errno::FAULT`].
pub(crate) fn check(bytes: &[u8]) -> Result<(), Errno> {
    let Some((start, end, is_written)) = pages(bytes) else {
        return Ok(());
    };
    match memory_map::covers(start, end, is_written) {
        Ok(false) => Err(Errno::FAULT),
        // A program without /proc goes unchecked, rather than without memory.
        Ok(true) | Err(_) => Ok(()),
    }
}

/// Returns the bytes that a command registers, and whether they are written, if they have to be there at once.
fn pages(bytes: &[u8]) -> Option<(u64, u64, bool)> {
    let (header, rest) = CommandHeader::ref_from_prefix(bytes).ok()?;
    if header.command.get() != command::REG_MR {
        return None;
    }
    let (asked, _) = RegMr::ref_from_prefix(rest).ok()?;
    let (start, rights) = (asked.start.get(), asked.access_flags.get());
    let is_written_remotely = rights & (REMOTE_WRITE | REMOTE_ATOMIC) != 0;
    let is_written = rights & LOCAL_WRITE != 0;
    // The service refuses such rights with another error, and an end beyond all addresses.
    if rights & ON_DEMAND != 0 || is_written_remotely && !is_written {
        return None;
    }
    let end = start.checked_add(asked.length.get())?;
    Some((start, end, is_written))
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn reg(number: u32, start: u64, length: u64, access: u32) -> Vec<u8> {
        let asked = RegMr {
            response: 0.into(),
            start: start.into(),
            length: length.into(),
            hca_va: start.into(),
            pd_handle: 0.into(),
            access_flags: access.into(),
        };
        let header = [&number.to_ne_bytes()[..], &[12, 0, 3, 0]].concat();
        [&header, asked.as_bytes()].concat()
    }

    #[test]
    fn regions_that_need_no_pages_are_passed_on() {
        for (number, start, length, access) in [
            (command::REG_MR, 4096, 1, ON_DEMAND | LOCAL_WRITE),
            (command::REG_MR, 0, u64::MAX, ON_DEMAND),
            (command::REG_MR, 4096, u64::MAX, LOCAL_WRITE),
            (command::REG_MR, 4096, 1, REMOTE_WRITE),
            (command::REG_MR, 4096, 0, LOCAL_WRITE),
            (command::DEREG_MR, 4096, 1, LOCAL_WRITE),
        ] {
            let bytes = reg(number, start, length, access);
            assert_eq!(check(&bytes), Ok(()), "{number} {length} {access}");
        }
        assert_eq!(check(&[]), Ok(()));
    }

    #[test]
    fn memory_of_another_kind_than_the_region_is_refused() {
        let bytes = vec![7_u8; 100_000];
        let text = "a constant";
        let of = |start: *const u8, length: usize, access| {
            let start = u64::try_from(start.addr()).unwrap();
            check(&reg(command::REG_MR, start, length as u64, access))
        };
        assert_eq!(
            of(bytes.as_ptr(), bytes.len(), LOCAL_WRITE | REMOTE_WRITE),
            Ok(())
        );
        assert_eq!(of(text.as_ptr(), text.len(), 0), Ok(()));
        assert_eq!(
            of(text.as_ptr(), text.len(), LOCAL_WRITE),
            Err(Errno::FAULT)
        );
        let absent = std::ptr::without_provenance(4096);
        assert_eq!(of(absent, 1, 0), Err(Errno::FAULT));
    }
}
