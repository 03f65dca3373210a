//! The parts of an ELF file by which the dynamic loader decides: of 64 bits and little-endian, as the preload library is.

/// Bytes of a string of the file that are read.
const MAX_TEXT: usize = 4096;

/// Bytes of the dynamic section that are read.
const MAX_DYNAMIC: usize = 1 << 16;

/// Bytes of notes that are read.
const MAX_NOTES: usize = 1 << 16;

/// Kinds of segments.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const NOTE: u32 = 4;

/// Tags of the dynamic section.
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const SONAME: u64 = 14;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

/// Findings in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// It names a dynamic loader.
    pub(crate) has_interpreter: bool,
    /// It has the note of the Go linker.
    pub(crate) is_go: bool,
    /// Its own name as a library.
    pub(crate) soname: Option<String>,
    /// Names of the libraries that it needs.
    pub(crate) needed: Vec<String>,
    /// Lists of folders with its libraries.
    pub(crate) run_path: Vec<String>,
}

/// Fills a buffer from an offset of a file.
type Read<'r> = dyn Fn(u64, &mut [u8]) -> Option<()> + 'r;

/// A program header.
#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

impl Elf {
    /// Takes a file apart. `None` if it is of another kind, or not whole.
    pub(crate) fn read(read: &Read<'_>) -> Option<Self> {
        let segments = segments(read)?;
        let part = |segment: &Segment, most: usize| {
            let size = usize::try_from(segment.size).map_or(most, |size| size.min(most));
            let mut bytes = vec![0; size];
            read(segment.offset, &mut bytes).map(|()| bytes)
        };
        let of_kind = |kind| segments.iter().filter(move |segment| segment.kind == kind);
        let mut elf = Self {
            has_interpreter: of_kind(INTERPRETER).next().is_some(),
            is_go: of_kind(NOTE)
                .filter_map(|segment| part(segment, MAX_NOTES))
                .any(|notes| has_go_note(&notes)),
            ..Self::default()
        };
        let Some(dynamic) = of_kind(DYNAMIC).next() else {
            return Some(elf);
        };
        let dynamic = part(dynamic, MAX_DYNAMIC)?;
        let entries = dynamic.chunks_exact(16);
        let entries = entries.filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)));
        let entries: Vec<(u64, u64)> = entries.take_while(|(tag, _)| *tag != 0).collect();
        let strings = entries.iter().find(|(tag, _)| *tag == STRINGS)?.1;
        let strings = offset_of(&segments, strings)?;
        for (tag, value) in entries {
            let text = || text(read, strings.checked_add(value)?);
            match tag {
                NEEDED => elf.needed.extend(text()),
                SONAME => elf.soname = text(),
                RPATH | RUNPATH => elf.run_path.extend(text()),
                _ => {}
            }
        }
        Some(elf)
    }
}

fn segments(read: &Read<'_>) -> Option<Vec<Segment>> {
    let mut header = [0; 64];
    read(0, &mut header)?;
    // 64 bits, little-endian.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let at = u64_at(&header, 32)?;
    let (size, count) = (u16_at(&header, 54)?, u16_at(&header, 56)?);
    if size < 56 {
        return None;
    }
    let mut table = vec![0; usize::from(size) * usize::from(count)];
    read(at, &mut table)?;
    let rows = table.chunks_exact(usize::from(size));
    rows.map(|row| {
        Some(Segment {
            kind: u32_at(row, 0)?,
            offset: u64_at(row, 8)?,
            address: u64_at(row, 16)?,
            size: u64_at(row, 32)?,
        })
    })
    .collect()
}

/// Returns the place in the file of an address of the loaded program.
fn offset_of(segments: &[Segment], address: u64) -> Option<u64> {
    let loaded = segments.iter().filter(|segment| segment.kind == LOAD);
    let mut places = loaded.filter_map(|segment| {
        let within = address.checked_sub(segment.address)?;
        (within < segment.size).then(|| segment.offset.checked_add(within))?
    });
    places.next()
}

/// Reads a string up to its zero byte: by blocks, and by bytes where the file ends.
fn text(read: &Read<'_>, at: u64) -> Option<String> {
    let (mut bytes, mut at) = (Vec::new(), at);
    while bytes.len() < MAX_TEXT {
        let (mut block, mut byte) = ([0; 64], [0]);
        let part = match read(at, &mut block) {
            Some(()) => &block[..],
            None => read(at, &mut byte).map(|()| &byte[..])?,
        };
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(&part[..end]);
            return String::from_utf8(bytes).ok();
        }
        bytes.extend_from_slice(part);
        at = at.checked_add(u64::try_from(part.len()).ok()?)?;
    }
    None
}

/// Returns `true` if one of the notes is the Go linker's.
fn has_go_note(notes: &[u8]) -> bool {
    let mut rest = notes;
    let padded = |length: u32| usize::try_from(length).ok()?.checked_next_multiple_of(4);
    while let (Some(name), Some(description)) = (u32_at(rest, 0), u32_at(rest, 4)) {
        if name == 4 && rest.get(12..16) == Some(b"Go\0\0") {
            return true;
        }
        let length = padded(name).zip(padded(description));
        let length = length.and_then(|(name, description)| name.checked_add(description));
        let next = length.and_then(|length| rest.get(length.checked_add(12)?..));
        match next {
            Some(next) => rest = next,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with segments and the content behind them.
    fn file(segments: &[(u32, u64, u64)], content: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(64, 0);
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = u8::try_from(segments.len()).unwrap();
        for (kind, offset, size) in segments {
            let mut row = [0; 56];
            row[..4].copy_from_slice(&kind.to_le_bytes());
            row[8..16].copy_from_slice(&offset.to_le_bytes());
            // Loaded at its place in the file, and 4096 bytes higher.
            row[16..24].copy_from_slice(&(offset + 4096).to_le_bytes());
            row[32..40].copy_from_slice(&size.to_le_bytes());
            bytes.extend_from_slice(&row);
        }
        bytes.extend_from_slice(content);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Elf> {
        Elf::read(&|offset, buffer| {
            let start = usize::try_from(offset).ok()?;
            let part = bytes.get(start..start.checked_add(buffer.len())?)?;
            buffer.copy_from_slice(part);
            Some(())
        })
    }

    #[test]
    fn a_program_of_the_loader_names_its_libraries() {
        let entries = [
            (NEEDED, 0),
            (NEEDED, 10),
            (RUNPATH, 18),
            (STRINGS, 4096 + 312),
            (0, 0),
        ];
        let entries =
            entries.map(|(tag, value): (u64, u64)| [tag.to_le_bytes(), value.to_le_bytes()]);
        let content = [
            entries.concat().concat().as_slice(),
            b"libasan.8\0libc.so\0$ORIGIN/..\0",
        ]
        .concat();
        let start = 64 + 3 * 56;
        let segments = [(INTERPRETER, 0, 1), (DYNAMIC, start, 80), (LOAD, 0, 4096)];
        let elf = read(&file(&segments, &content)).unwrap();
        let wanted = Elf {
            has_interpreter: true,
            needed: vec!["libasan.8".to_owned(), "libc.so".to_owned()],
            run_path: vec!["$ORIGIN/..".to_owned()],
            ..Elf::default()
        };
        assert_eq!(elf, wanted);
    }

    #[test]
    fn a_go_program_has_its_linkers_note_behind_others() {
        let note = |name: &[u8; 4]| {
            let sizes = [
                4_u32.to_le_bytes(),
                3_u32.to_le_bytes(),
                4_u32.to_le_bytes(),
            ];
            [sizes.concat().as_slice(), name, b"id\0\0"].concat()
        };
        let notes = [note(b"GNU\0"), note(b"Go\0\0")].concat();
        let elf = read(&file(&[(NOTE, 120, 40)], &notes)).unwrap();
        assert!(elf.is_go && !elf.has_interpreter, "{elf:?}");
        let others = note(b"GNU\0");
        assert!(!read(&file(&[(NOTE, 120, 20)], &others)).unwrap().is_go);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_or_is_none_of_these_is_refused() {
        let entries = [(STRINGS, 4096 + 224), (SONAME, 0), (0, 0)];
        let entries =
            entries.map(|(tag, value): (u64, u64)| [tag.to_le_bytes(), value.to_le_bytes()]);
        let content = [entries.concat().concat().as_slice(), b"l.so\0"].concat();
        let whole = file(&[(DYNAMIC, 176, 48), (LOAD, 0, 4096)], &content);
        assert!(read(&whole).is_some());
        for length in 0..whole.len() - 5 {
            assert!(read(&whole[..length]).is_none(), "{length} bytes");
        }
        assert_eq!(read(b"#!/bin/sh\n"), None);
    }
}
