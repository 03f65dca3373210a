//! The guest's program: built when the example starts, and put into the guest's memory.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, fs, io};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const TARGET: &str = "x86_64-unknown-linux-gnu";

const MANIFEST: &str = include_str!("payload/Cargo.toml.in");
const LOCK: &str = include_str!("payload/Cargo.lock");

/// Crates that the payload uses, and their folders in a checkout.
const CRATES: [(&str, &str); 5] = [
    ("ib-endpoint", "hw/endpoint"),
    ("ib-vtime", "hw/vtime"),
    ("ib-wire", "hw/wire"),
    ("mlx4-defs", "hw/mlx4-defs"),
    ("mlx4-driver", "hw/mlx4-driver"),
];

/// The payload as an ELF file.
pub(crate) struct Payload(Vec<u8>);

impl Payload {
    /// Builds it beside this program, with the host's own toolchain: no standard library, no start files, and no SSE, which
    /// a guest's kernel would have to turn on first.
    pub(crate) fn build() -> Result<Self, Box<dyn Error>> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/vmm/payload");
        let built = env::current_exe()?.with_file_name("vmm-payload");
        let is_locked = Self::write_package(&source, &built)?;
        let layout = format!("-Clink-arg=-T{}", source.join("layout.ld").display());
        let flags = [
            "-Ctarget-feature=-sse,-sse2,-sse3",
            "-Crelocation-model=static",
            "-Clink-arg=-nostartfiles",
            "-Clink-arg=-nostdlib",
            "-Clink-arg=-static",
            &layout,
        ];
        let made = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--target", TARGET])
            .args(is_locked.then_some("--locked"))
            .arg("--target-dir")
            .arg(&built)
            .arg("--manifest-path")
            .arg(built.join("Cargo.toml"))
            // Cargo looks for its configuration from there on upwards.
            .current_dir(&source)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .output()?;
        if !made.status.success() {
            return Err(String::from_utf8_lossy(&made.stderr).into());
        }
        let file = built.join(TARGET).join("release/vmm-payload");
        let listing = Command::new("objdump").arg("-d").arg(&file).output()?;
        if !listing.status.success() || listing.stdout.windows(3).any(|text| text == b"mm0") {
            return Err("the payload uses vector registers, or objdump cannot tell".into());
        }
        Ok(Self(fs::read(file)?))
    }

    /// Writes the manifest of the payload, whose source is elsewhere, into the folder in which it is built. Returns `true` if the versions of
    /// other crates are locked: in a checkout, whose crates are used by their paths.
    fn write_package(source: &Path, built: &Path) -> Result<bool, Box<dyn Error>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let is_checkout = root.join("hw/mlx4-driver/Cargo.toml").exists();
        let main = source.join("src/main.rs");
        let mut manifest =
            format!("{MANIFEST}\n[[bin]]\nname = \"vmm-payload\"\npath = {main:?}\n");
        for (name, folder) in CRATES.iter().filter(|_| is_checkout) {
            let path = root.join(folder);
            let (of_registry, of_checkout) = (
                format!("{name} = \"0.1.0\""),
                format!("{name} = {{ path = {path:?} }}"),
            );
            manifest = manifest.replace(&of_registry, &of_checkout);
        }
        fs::create_dir_all(built)?;
        write(&built.join("Cargo.toml"), &manifest)?;
        write(&built.join("Cargo.lock"), LOCK)?;
        Ok(is_checkout)
    }

    /// Copies it to where it was linked for. Returns the address of its first instruction.
    pub(crate) fn load(&self, memory: &GuestMemoryMmap) -> Result<u64, Box<dyn Error>> {
        const SEGMENT: u64 = 1;
        let word = |at: usize, len: usize| -> u64 {
            let bytes = self.0.get(at..at + len).unwrap_or_default();
            let bytes = bytes.iter().rev();
            bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        let (table, size, count) = (word(32, 8), word(54, 2), word(56, 2));
        for nth in 0..count {
            let at = usize::try_from(table + nth * size)?;
            if word(at, 4) == SEGMENT {
                let (offset, len) = (usize::try_from(word(at + 8, 8))?, word(at + 32, 8));
                let bytes = self.0.get(offset..offset + usize::try_from(len)?);
                let bytes = bytes.ok_or("the payload is cut off")?;
                memory.write_slice(bytes, GuestAddress(word(at + 16, 8)))?;
            }
        }
        Ok(word(24, 8))
    }
}

/// Writes a file unless it is there with the same text: another VMM may build the payload at the same time.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let new = path.with_extension(format!("{}.new", std::process::id()));
    fs::write(&new, text)?;
    fs::rename(new, path)
}
