//! A real service with all its sockets in a folder of its own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

/// The command, which logs what it does by itself.
pub(crate) fn vhca() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vhca"));
    command.env_remove("RUST_LOG");
    command
}

/// A running service with sockets for VMMs, which dies with the test.
pub(crate) struct Serve {
    pub(crate) child: Child,
    /// It ends if nobody can hear what it tells.
    _stdout: BufReader<ChildStdout>,
    /// What it said when it was ready.
    pub(crate) ready: Value,
    /// Where its sockets are, `control.sock` and those of VFs, and its `log`.
    pub(crate) folder: tempfile::TempDir,
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serve {
    /// The command of a service of one adapter with so many VFs, with its sockets in a folder.
    pub(crate) fn command(mut vhca: Command, folder: &Path, vfs: u16) -> Command {
        vhca.args(["serve", "--json", "--topology", "single"])
            .args(["--vfs", &vfs.to_string()])
            .arg("--control")
            .arg(folder.join("control.sock"))
            .arg("--vfio-user")
            .arg(folder.join("vfs"));
        vhca
    }

    /// Starts a service of one adapter with so many VFs, and waits until it is ready.
    pub(crate) fn start(vfs: u16) -> Self {
        Self::start_with(vfs, &[])
    }

    /// Starts it with more arguments.
    pub(crate) fn start_with(vfs: u16, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Self::command(vhca(), folder.path(), vfs);
        command.args(arguments);
        Self::spawn(command, folder)
    }

    /// Starts what is to become a service with its sockets in a folder.
    pub(crate) fn spawn(mut command: Command, folder: tempfile::TempDir) -> Self {
        let log = File::create(folder.path().join("log")).unwrap();
        let child = command.stdout(Stdio::piped()).stderr(log).spawn();
        Self::adopt(child.unwrap(), folder)
    }

    /// Waits until a process is ready that is to become one.
    pub(crate) fn adopt(mut child: Child, folder: tempfile::TempDir) -> Self {
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        Self {
            child,
            _stdout: stdout,
            ready: serde_json::from_str(&line).unwrap(),
            folder,
        }
    }

    /// The socket of the first VF.
    pub(crate) fn socket(&self) -> PathBuf {
        let path = self.ready["vfio_user"][0]["socket"].as_str();
        PathBuf::from(path.unwrap())
    }

    /// What the kernel tells of the process.
    pub(crate) fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.child.id()).into()
    }
}
