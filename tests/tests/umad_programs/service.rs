//! A service in a thread of the test, and programs on its ports.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;
use vhca::world::World;
use vhca::{Runner, StopHandle};
use vhca_service::serve::{Lab, Listener, Options, Service, UmadSocket, VerbsSocket};
use vhca_tests::cargo::cargo;

/// The preload library, built as `cargo build` does.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let built = cargo()
            .args(["build", "-p", "vhca-umad", "--locked", "--quiet"])
            .current_dir(&root)
            .status()
            .expect("cargo runs");
        assert!(built.success(), "the library is built");
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| root.join("target"), PathBuf::from);
        let library = target.join("debug/libvhca_umad.so");
        library.canonicalize().expect("the library is there")
    })
}

/// A fabric served to programs.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) dir: TempDir,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves a fabric once all of it satisfies a condition.
    pub(crate) fn new(options: Options, ready: fn(&World) -> bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("umad");
        let (told, tell) = channel();
        let thread = std::thread::spawn(move || {
            let mut service = Service::new(Lab::build(&options, 1).unwrap());
            let listener = Listener::packets(&socket).unwrap();
            service.add_way_in(UmadSocket::new(listener).unwrap());
            if options.verbs {
                let listener = Listener::packets(&socket.with_extension("verbs")).unwrap();
                service.add_way_in(VerbsSocket::new(listener));
            }
            let mut runner = Runner::new(service).unwrap();
            let long = Duration::from_secs(60);
            let brought_up = runner.run_until(long, |service| ready(service.lab().world()));
            assert_eq!(brought_up.unwrap(), vhca::RunEnd::Reached);
            told.send(runner.stop_handle().unwrap()).unwrap();
            runner.run().unwrap();
        });
        Self {
            dir,
            stop: tell.recv().expect("the fabric comes up"),
            thread: Some(thread),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("umad")
    }

    /// A program on a node, to be started.
    pub(crate) fn on(&self, node: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", library());
        command.env("VHCA_UMAD_SOCKET", self.socket());
        command.env("VHCA_UMAD_NODE", node);
        command
    }

    /// What a program on a node prints; it must succeed.
    pub(crate) fn told(&self, node: &str, program: &str, arguments: &[&str]) -> String {
        succeeded(&self.on(node, program).args(arguments).output().unwrap())
    }

    /// Ends the service.
    pub(crate) fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stop.stop().unwrap();
            thread.join().expect("the service fared well");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// What a program printed, which succeeded.
pub(crate) fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {text}{trouble}",
        output.status
    );
    text
}
