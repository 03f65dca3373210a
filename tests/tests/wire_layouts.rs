//! Properties of every layout of `ib-wire`, by the table of their fields.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use vhca_tests::fields::{Layout, layouts};

/// Bytes of the largest layout.
const LARGEST: usize = 256;

fn bytes(layout: &Layout, from: &[u8; LARGEST]) -> Vec<u8> {
    from[..layout.size].to_vec()
}

#[test]
fn the_fields_of_each_layout_cover_all_bits_and_share_none() {
    for layout in layouts() {
        let mut covered = vec![0; layout.size];
        for (name, mask) in layout.masks() {
            assert_ne!(mask, vec![0; layout.size], "{} {name}", layout.name);
            for (at, (covered, mask)) in covered.iter_mut().zip(&mask).enumerate() {
                assert_eq!(*covered & mask, 0, "{} {name} byte {at}", layout.name);
                *covered |= mask;
            }
        }
        assert_eq!(covered, vec![0xff; layout.size], "{}", layout.name);
    }
}

/// All Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The names of the layouts that a source file declares with the `layout!` macro.
fn declared(source: &str) -> impl Iterator<Item = String> {
    source
        .split("\nlayout! {")
        .skip(1)
        .filter_map(|declaration| {
            let head = declaration
                .lines()
                .map(str::trim)
                .find(|line| line.ends_with('{'))?;
            let name = head.trim_start_matches("mad ").trim_end_matches('{').trim();
            Some(name.split(',').next()?.to_owned())
        })
}

#[test]
fn every_layout_in_the_source_is_in_the_table() {
    let mut files = Vec::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../hw/wire/src");
    sources(Path::new(folder), &mut files);
    let declared: BTreeSet<String> = files
        .iter()
        .filter(|file| !file.ends_with("layout.rs"))
        .flat_map(|file| {
            declared(&fs::read_to_string(file).expect("sources are text")).collect::<Vec<_>>()
        })
        .collect();
    let mut listed: BTreeSet<String> = layouts().map(|layout| layout.name.to_owned()).collect();
    // Declared without the macro, for its constructor in constants.
    assert!(listed.remove("MadHeader"));
    assert_eq!(
        declared, listed,
        "a new layout is listed in tests/src/fields/"
    );
}

proptest! {
    #[test]
    fn decoding_and_encoding_any_bytes_is_the_identity(
        input: [u8; LARGEST], dirt: [u8; LARGEST]
    ) {
        for layout in layouts() {
            let from = bytes(layout, &input);
            let mut to = bytes(layout, &dirt);
            layout.reencode(&from, &mut to);
            prop_assert_eq!(&to, &from, "{}", layout.name);
        }
    }

    #[test]
    fn setting_a_field_reads_back_and_changes_no_other_bit(
        input: [u8; LARGEST], before: [u8; LARGEST]
    ) {
        for layout in layouts() {
            let (from, before) = (bytes(layout, &input), bytes(layout, &before));
            for (index, (name, mask)) in layout.masks().iter().enumerate() {
                let mut to = before.clone();
                layout.copy_field(index, &from, &mut to);
                let expected: Vec<u8> = (0..layout.size)
                    .map(|at| (before[at] & !mask[at]) | (from[at] & mask[at]))
                    .collect();
                prop_assert_eq!(&to, &expected, "{} {}", layout.name, name);
            }
        }
    }
}
