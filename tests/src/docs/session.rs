//! A shell in a scratch folder that is like the root of a fresh clone.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::root;
use crate::cargo::leave_package;
use crate::live::{binary, wait_for};

/// Folders of the workspace that commands name.
const LINKED: [&str; 2] = ["tests", "hw"];

/// Replaces the profile for releases, which takes minutes to build by, with that of the suites in a command.
const PROFILE: &str = "[ -z \"$VHCA_TEST_PROFILE\" ] || for argument; do
    shift
    [ \"$argument\" = --release ] && set -- \"$@\" --profile \"$VHCA_TEST_PROFILE\" || set -- \"$@\" \"$argument\"
done";

/// Runs an example as Cargo has built it with the tests of the workspace, if it has: for a package alone, features of what that depends
/// on are other ones, and building all of it again takes minutes.
const EXAMPLE: &str = "previous=
for argument; do
    [ \"$previous\" != --example ] || [ ! -x \"$examples/$argument\" ] || exec \"$examples/$argument\"
    previous=$argument
done";

/// Reports the status of each command that fails, and of services that ended with one.
const PRELUDE: &str = "set -o pipefail
shopt -s expand_aliases
services=()
check() { (($1 == 0)) || printf '%s\\t%s\\0' \"$1\" \"$2\" >&9; }
";

/// Ends a session: services that run are ended with it.
const FINALE: &str = "for service in \"${services[@]}\"; do
    kill -0 \"$service\" 2>/dev/null || { wait \"$service\"; check $? 'a service in the background'; }
done
exit 0
";

/// What became of a session's commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Exit status and text of each command that failed.
    pub failed: Vec<(i32, String)>,
    /// Output of all of them.
    pub output: String,
    /// Whether all of it ended, or printed what it should, in time.
    pub ended: bool,
}

/// A shell with a folder, a home for sockets, and so a fabric, of its own.
#[derive(Debug)]
pub struct Session {
    folder: TempDir,
}

impl Session {
    /// Makes the folder, with stand-ins for programs: name and script.
    #[must_use]
    pub fn new(programs: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("vhca-docs")
            .tempdir()
            .unwrap();
        let path = folder.path();
        for name in LINKED {
            symlink(root().join(name), path.join(name)).unwrap();
        }
        for name in ["bin", "run", "target"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        symlink(binary().parent().unwrap(), path.join("target/release")).unwrap();
        fs::set_permissions(path.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
        // Cargo finds the workspace, and programs that it runs leave their files here.
        let tests = std::env::current_exe().unwrap();
        let examples = tests.ancestors().nth(2).unwrap().join("examples");
        let cargo = format!(
            "examples='{}'\n{EXAMPLE}\nsubcommand=$1; shift; {PROFILE}\nexec '{}' \"$subcommand\" --manifest-path '{}' \"$@\"",
            examples.display(),
            env!("CARGO"),
            root().join("Cargo.toml").display()
        );
        for (name, script) in programs.iter().chain(&[("cargo", cargo.as_str())]) {
            let program = path.join("bin").join(name);
            fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { folder }
    }

    /// Runs commands one after the other in one shell, and ends what they leave.
    #[must_use]
    pub fn run(&self, commands: &[String], limit: Duration) -> Outcome {
        self.run_until(commands, limit, |_| false)
    }

    /// Runs commands until their output is as it should be, or to their end.
    #[must_use]
    pub fn run_until(
        &self,
        commands: &[String],
        limit: Duration,
        is_done: impl Fn(&str) -> bool,
    ) -> Outcome {
        let folder = self.folder.path();
        let mut script = PRELUDE.to_owned();
        for command in commands {
            let quoted = command.replace('\'', r"'\''");
            script.push_str(&format!("{command}\ncheck $? '{quoted}'\n"));
            if is_service(command) {
                script.push_str("services+=($!)\n");
            }
        }
        script.push_str(FINALE);
        fs::write(folder.join("script"), script).unwrap();
        let [output, failed] = ["output", "failed"].map(|name| folder.join(name));
        let out = File::create(&output).unwrap();
        let mut shell = Command::new("bash");
        leave_package(&mut shell);
        let mut shell = shell
            .args(["-c", "exec 9>failed; . ./script"])
            .current_dir(folder)
            .env("PATH", path(folder))
            .env("XDG_RUNTIME_DIR", folder.join("run"))
            .env("TMPDIR", folder)
            .env_remove("VHCA_CONTROL")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .process_group(0)
            .spawn()
            .unwrap();
        let group = Pid::from_child(&shell);
        let printed = || {
            let bytes = fs::read(&output).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let ended = wait_for(limit, || {
            let ended = shell.try_wait().unwrap().is_some();
            (ended || is_done(&printed())).then_some(())
        });
        // None is left if no service was started.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = shell.wait();
        Outcome {
            failed: failures(&failed),
            output: printed(),
            ended: ended.is_some(),
        }
    }
}

/// Returns `true` if a command goes on in the background.
fn is_service(command: &str) -> bool {
    let code = command.split(" #").next().unwrap_or_default().trim_end();
    code.ends_with('&') && !code.ends_with("&&")
}

/// The search path of a session: stand-ins, the built programs, the machine's, and its daemons.
fn path(folder: &Path) -> std::ffi::OsString {
    let built = binary().parent().unwrap().to_owned();
    let machine = std::env::var_os("PATH").unwrap_or_default();
    let folders = [folder.join("bin"), built].into_iter();
    let folders = folders.chain(std::env::split_paths(&machine));
    let folders = folders.chain(["/usr/sbin".into()]);
    std::env::join_paths(folders).unwrap()
}

fn failures(file: &Path) -> Vec<(i32, String)> {
    let mut text = String::new();
    if let Ok(mut file) = File::open(file) {
        file.read_to_string(&mut text).unwrap();
    }
    let entries = text.split_terminator('\0');
    let failures = entries.map(|entry| {
        let (status, command) = entry.split_once('\t').unwrap();
        (status.parse().unwrap(), command.to_owned())
    });
    failures.collect()
}
