//! The workflow of the documents, run as it stands.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use vhca_tests::docs::root;
use vhca_tests::live::binary;

/// Steps that make what the suite has: packages, and the binaries under test.
const MADE: [&str; 2] = ["Packages", "Release of vhca"];

/// Ends the service with its sockets in a folder, if a step that failed has left it.
struct Fabric<'f>(&'f Path);

impl Drop for Fabric<'_> {
    fn drop(&mut self) {
        let control = self.0.join("vhca/control.sock");
        let mut stop = Command::new(binary());
        stop.args(["stop", "--wait", "0", "--control"]).arg(control);
        // It has ended if all went well.
        let _ = stop.output();
    }
}

/// Returns names and scripts of the steps of a workflow that run something.
fn steps(workflow: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut name = "";
    let mut is_script = false;
    for line in workflow.lines() {
        if let Some(named) = line.strip_prefix("      - name: ") {
            (name, is_script) = (named, false);
        } else if let Some(command) = line.strip_prefix("        run: ") {
            is_script = command == "|";
            let script = if is_script { "" } else { command };
            steps.push((name.to_owned(), script.to_owned()));
        } else if is_script && let Some((_, script)) = steps.last_mut() {
            script.push_str(line.strip_prefix("          ").unwrap_or(""));
            script.push('\n');
        }
    }
    steps
}

#[test]
fn the_workflow_of_the_documents_runs_as_it_stands() {
    let workflow = root().join("vmm-glue/service/docs/verbs-ci.yml");
    let steps = steps(&fs::read_to_string(workflow).unwrap());
    assert_eq!(steps.len(), 8, "{steps:?}");
    let folder = tempfile::tempdir().unwrap();
    let binaries = binary().parent().unwrap().display();
    let path = format!("{binaries}:{}", std::env::var("PATH").unwrap());
    let _fabric = Fabric(folder.path());
    for (name, script) in &steps {
        if MADE.contains(&&**name) {
            continue;
        }
        let (succeeded, said) = run(folder.path(), &path, script);
        assert!(succeeded, "{name}: {said}");
        if name == "pyverbs" {
            assert!(said.contains("registers memory"), "{said}");
        }
    }
    let log = fs::read_to_string(folder.path().join("fabric.log")).unwrap();
    assert!(log.contains("ready: "), "{log}");
}

/// Runs a script as GitHub's runner does. Returns `true` if it succeeds, and its output.
fn run(folder: &Path, path: &str, script: &str) -> (bool, String) {
    let output = folder.join("output");
    let file = File::create(&output).unwrap();
    // Whoever goes on in the background holds no pipe of the test.
    let status = Command::new("timeout")
        .args(["120", "bash", "-e", "-o", "pipefail", "-c", script])
        .env("PATH", path)
        .env("XDG_RUNTIME_DIR", folder)
        .env_remove("VHCA_CONTROL")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .status()
        .unwrap();
    (status.success(), fs::read_to_string(output).unwrap())
}
