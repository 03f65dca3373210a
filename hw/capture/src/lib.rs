//! Capture files that Wireshark decodes: InfiniBand frames in ERF records in a pcap file.
//!
//! [`Writer`] writes them to anything that implements [`std::io::Write`], [`Reader`] reads them from
//! anything that implements [`std::io::Read`]; the crate opens no file itself. A frame starts at its
//! Local Route Header and ends with its VCRC.
//!
//! The format is pcap link type 197 (`LINKTYPE_ERF`) with record type 21, which `ibdump` writes and
//! which tshark 4.0 decodes; it does not know link type 247 (`LINKTYPE_INFINIBAND`). The reader takes
//! both byte orders and both time resolutions of pcap. It reads no other link type, no pcapng, and no
//! ERF extension headers.
//!
//! ```
//! use ib_capture::{Interface, Reader, Writer};
//! use ib_vtime::Instant;
//!
//! let mut writer = Writer::new(Vec::new())?;
//! writer.write(Instant::from_millis(5), Interface::default(), &[0xf0, 0x02])?;
//! let file = writer.finish()?;
//!
//! let frame = Reader::new(file.as_slice())?.next().expect("one frame")?;
//! assert_eq!(frame.time, Instant::from_millis(5));
//! assert_eq!(frame.bytes, [0xf0, 0x02]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod format;
mod frame;
mod reader;
mod writer;

pub use frame::{FrameRecord, Interface, MAX_FRAME_LEN};
pub use reader::{ReadError, Reader};
pub use writer::{WriteError, Writer};
