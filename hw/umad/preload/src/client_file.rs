//! The file that says which service programs use without variables: `/run/vhca/client.toml`, for a library in
//! `/etc/ld.so.preload` and programs that clear their environment.

use std::sync::OnceLock;

use rustix::fs::{FileType, Mode, OFlags};

/// Place of the file.
const PATH: &str = "/run/vhca/client.toml";

/// Longest file that is read.
const LONGEST: usize = 4096;

/// Settings of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientFile {
    /// The service's socket.
    pub(crate) socket: Option<String>,
    /// The adapters that programs see.
    pub(crate) node: Option<String>,
}

/// Returns what the file says, as it was with the first question.
pub(crate) fn get() -> &'static ClientFile {
    static FILE: OnceLock<ClientFile> = OnceLock::new();
    FILE.get_or_init(|| read().unwrap_or_default())
}

/// Reads the file, if it is of root or of the owner of the socket that it names, and no other user may write it.
fn read() -> Option<ClientFile> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(PATH, flags, Mode::empty()).ok()?;
    let status = rustix::fs::fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    if !is_file || status.st_mode & 0o022 != 0 {
        return None;
    }
    let mut text = vec![0; LONGEST];
    let length = rustix::io::read(&file, text.as_mut_slice()).ok()?;
    let read = parse(core::str::from_utf8(text.get(..length)?).ok()?);
    let is_owners = || {
        let socket = rustix::fs::stat(read.socket.as_deref()?).ok()?;
        Some(socket.st_uid == status.st_uid)
    };
    (status.st_uid == 0 || is_owners().unwrap_or(false)).then_some(read)
}

/// Reads lines of a key and a text in quotation marks; others are left out.
fn parse(text: &str) -> ClientFile {
    let mut file = ClientFile::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        let value = value
            .trim()
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'));
        let value = value.filter(|value| !value.is_empty() && !value.contains(['"', '\\']));
        match key.trim() {
            "socket" => file.socket = value.map(str::to_owned),
            "node" => file.node = value.map(str::to_owned),
            _ => {}
        }
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_keys_and_texts_are_read() {
        let text = "# Programs of all users\nsocket = \"/run/vhca/control.umad\"\nnode=\"H1-1,H1-2\"\nother = 3\n";
        let file = parse(text);
        assert_eq!(file.socket.as_deref(), Some("/run/vhca/control.umad"));
        assert_eq!(file.node.as_deref(), Some("H1-1,H1-2"));
        for broken in [
            "socket = /run/x",
            "socket = \"\"",
            "socket",
            "=",
            "socket = \"a\\n\"",
        ] {
            assert_eq!(parse(broken), ClientFile::default(), "{broken}");
        }
    }
}
