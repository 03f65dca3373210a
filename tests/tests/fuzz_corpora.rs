//! Replays the fuzz corpora through the fuzz targets' bodies, without a fuzzer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use vhca_tests::fuzz_targets::{TARGETS, run};

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The entries of a folder, sorted; what the fuzzer found and nobody committed is left out.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the entry is readable").path())
        .collect();
    entries.sort();
    entries
}

fn stems(folder: &str) -> BTreeSet<String> {
    let entries = entries(&fuzz_folder().join(folder));
    entries
        .iter()
        .map(|path| {
            path.file_stem()
                .expect("entries have names")
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

#[test]
fn every_target_has_an_entry_point_a_binary_and_a_corpus() {
    let names: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len());
    assert_eq!(stems("fuzz_targets"), names);
    assert_eq!(stems("corpus"), names);
    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).unwrap();
    for name in &names {
        assert!(
            manifest.contains(&format!("[[bin]]\nname = \"{name}\"\n")),
            "{name}"
        );
        let source = fuzz_folder().join(format!("fuzz_targets/{name}.rs"));
        assert!(
            fs::read_to_string(source)
                .unwrap()
                .contains(&format!("run(\"{name}\"")),
            "{name}"
        );
    }
}

#[test]
fn the_corpora_replay_without_a_fault() {
    for (name, _) in TARGETS {
        let inputs = entries(&fuzz_folder().join("corpus").join(name));
        assert!(!inputs.is_empty(), "{name}");
        for input in &inputs {
            run(name, &fs::read(input).unwrap());
        }
        println!("{:4} inputs of {name}", inputs.len());
    }
}

#[test]
fn empty_input_and_every_length_of_ones_are_taken_by_every_target() {
    for (name, _) in TARGETS {
        for length in (0..=300).chain([1_000, 4_096]) {
            run(name, &vec![0xff; length]);
        }
    }
}
