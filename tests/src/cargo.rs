//! Cargo as a user runs it, for tests that build and run programs of the workspace.

use std::process::Command;

/// First parts of the names of variables by which Cargo describes the package of a running test.
const OF_A_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// Returns the Cargo that built the test.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    leave_package(&mut command);
    command
}

/// Removes the variables of the test's own package from a command that may run Cargo.
///
/// Build scripts that read them (ring's) run again when they change, and most of the workspace is built again after that.
pub fn leave_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let is_of_package = |text: &str| OF_A_PACKAGE.iter().any(|begin| text.starts_with(begin));
        if name.to_str().is_some_and(is_of_package) {
            command.env_remove(&name);
        }
    }
}
