//! A control group that bounds the memory of a service, as `MemoryMax=` of a unit does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group of its own, removed with its value.
#[derive(Debug)]
pub struct MemoryCgroup {
    folder: PathBuf,
    peak: &'static str,
}

impl MemoryCgroup {
    /// Makes a group whose processes have at most so many bytes together.
    ///
    /// # Errors
    /// The host's refusal: only root makes groups, and a container may have none.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let name = format!("vhca-tests-{}-{bytes}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        // Version 2 has one tree, version 1 one for each controller.
        let unified = fs::read_to_string(root.join("cgroup.subtree_control"))
            .is_ok_and(|controllers| controllers.split_whitespace().any(|word| word == "memory"));
        let (folder, limit, peak) = if unified {
            (root.join(name), "memory.max", "memory.peak")
        } else {
            let folder = root.join("memory").join(name);
            (folder, "memory.limit_in_bytes", "memory.max_usage_in_bytes")
        };
        fs::create_dir(&folder)?;
        let group = Self { folder, peak };
        fs::write(group.folder.join(limit), bytes.to_string())?;
        Ok(group)
    }

    /// Returns a command that runs a program in the group. Arguments of the program follow.
    pub(super) fn command(&self, program: &Path) -> Command {
        let [shell, words @ ..] = self.prefix();
        let mut command = Command::new(shell);
        command.args(words).arg(program);
        command
    }

    /// Returns the words before those of a program with which it runs in the group.
    pub fn prefix(&self) -> [String; 4] {
        let processes = self.folder.join("cgroup.procs");
        let script = r#"echo $$ > "$0" && exec "$@""#;
        ["sh", "-c", script, &processes.to_string_lossy()].map(str::to_owned)
    }

    /// Returns the most bytes that its processes had at a time.
    ///
    /// # Errors
    /// If the kernel does not say, as version 2 before Linux 5.19.
    pub fn peak(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.folder.join(self.peak))?;
        text.trim().parse().map_err(io::Error::other)
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // A group whose processes are still ending is left to the machine's next start.
        let _ = fs::remove_dir(&self.folder);
    }
}
