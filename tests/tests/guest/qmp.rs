//! QEMU's monitor.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};
use vhca_tests::live::{PATIENCE, wait_for};

/// A connection to the monitor of a guest that was booted with `--qmp`.
#[derive(Debug)]
pub(crate) struct Qmp(BufReader<UnixStream>);

impl Qmp {
    /// Connects once QEMU listens.
    pub(crate) fn connect(socket: &Path) -> Self {
        let stream = wait_for(PATIENCE, || UnixStream::connect(socket).ok());
        let stream = stream.expect("QEMU listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut qmp = Self(BufReader::new(stream));
        qmp.line();
        qmp.run("qmp_capabilities", &json!({}));
        qmp
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Runs a command, which must succeed.
    pub(crate) fn run(&mut self, command: &str, arguments: &Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.0.get_mut(), "{request}").unwrap();
        loop {
            let mut reply = self.line();
            if reply.get("event").is_none() {
                assert!(reply.get("return").is_some(), "{command}: {reply}");
                return reply["return"].take();
            }
        }
    }

    /// Saves the guest to a file, and waits until that is whole.
    pub(crate) fn save(&mut self, file: &Path) {
        let to = format!("file:{}", file.display());
        self.run("migrate", &json!({ "uri": to }));
        self.wait_for("query-migrate", "status", "completed");
    }

    /// Runs a query until a field of its answer has a value.
    pub(crate) fn wait_for(&mut self, query: &str, field: &str, value: &str) {
        let mut last = Value::Null;
        let found = wait_for(PATIENCE, || {
            last = self.run(query, &json!({}));
            (last[field] == value).then_some(())
        });
        assert!(found.is_some(), "{query}: {last}");
    }
}
