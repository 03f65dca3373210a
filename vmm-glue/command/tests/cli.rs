//! The command line as a user meets it: output, exit status and messages.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn vhca(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vhca"))
        .args(arguments)
        .output()
        .expect("the binary runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json_lines(output: &Output) -> Vec<Value> {
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

#[test]
fn the_demo_passes_and_prints_a_line_for_each_step() {
    let output = vhca(&["demo"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for line in text.lines() {
        assert!(line.chars().count() <= 120, "{line}");
    }
    let (steps, rest) = text.split_once("\n\n").expect("the steps, then a table");
    let begins = |line: &str| line.starts_with("ok ") || line.starts_with("       ");
    assert!(steps.lines().all(begins), "{steps}");
    let (table, summary) = rest.trim_end().split_once("\n\n").expect("a summary");
    assert!(summary.starts_with("all "), "{summary}");
    for row in [
        "VERDICT",
        "to_wire",
        "dropped",
        "LIVE",
        "cm_ids",
        "mcast_members",
    ] {
        let is_it = |line: &str| line.split_whitespace().next() == Some(row);
        assert!(table.lines().any(is_it), "no {row} in {table}");
    }
}

#[test]
fn the_demo_logs_what_is_dropped_when_it_is_asked_to() {
    assert_eq!(stderr(&vhca(&["demo"])), "");
    let log = stderr(&vhca(&["demo", "--verbose"]));
    assert!(log.contains("dropped a frame"), "{log}");
    assert!(
        log.lines().count() < 200,
        "a few lines for each VF and reason"
    );
}

#[test]
fn the_demos_json_has_the_same_steps_and_a_summary() {
    let lines = json_lines(&vhca(&["demo", "--json"]));
    let (summary, steps) = lines.split_last().expect("lines");
    assert_eq!(summary["ok"], true);
    assert_eq!(summary["steps"], steps.len());
    let ports = summary["ports"].as_array().expect("the ports");
    assert_eq!(ports.len(), 4, "two of each host");
    assert_eq!(ports[0]["sizes"]["mcast_members"], 4, "a guest of each VF");
    assert!(ports[0]["verdicts"]["to_wire"].as_u64() > Some(0));
    assert!(steps.iter().all(|step| step["ok"] == true));
    let names = steps.iter().filter_map(|step| step["step"].as_str());
    let last: Vec<_> = names.skip(steps.len() - 3).collect();
    assert_eq!(last, ["rdma-write", "rdma-read-lossy", "uc-send"]);
    let text = vhca(&["demo"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with(' '));
    for (step, line) in steps.iter().zip(lines) {
        assert_eq!(step["step"].as_str(), line.split_whitespace().nth(1));
    }
}

#[test]
fn wrong_arguments_point_to_the_help_and_exit_with_2() {
    for arguments in [
        &[][..],
        &["fly"],
        &["demo", "--sed", "1"],
        &["demo", "--seed", "-1"],
        &["bench", "--case", "nothing"],
        &["bench", "--runs", "0"],
        &["bench", "--vfs", "0"],
        &["bench", "--vfs", "1025"],
        &["bench", "--live", "0"],
        &["bench", "--case", "tid-roundtrip", "--live", "400001"],
    ] {
        let output = vhca(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains("help"), "{}", stderr(&output));
    }
}

#[test]
fn wrong_values_are_refused_with_the_range_and_contradictions_with_what_to_do() {
    const RANGE: &str = "expected a whole number from";
    const ATTACHED: &str = "because an attached service has the fabric and subnet manager of others: leave out one of them";
    let folder = tempfile::tempdir().expect("a folder");
    let control = folder.path().join("control.sock");
    let control = control.to_str().expect("a name");
    let config = folder.path().join("vhca.toml");
    std::fs::write(&config, "topology = \"single\"\n").expect("a file");
    let config = config.to_str().expect("a name");
    for (arguments, status, line) in [
        ("serve --vfs -1", 2, format!("error: invalid value '-1' for '--vfs <VFS>': {RANGE} 0 to 254")),
        ("serve --vfs x", 2, format!("error: invalid value 'x' for '--vfs <VFS>': {RANGE} 0 to 254")),
        (
            "serve --vfs 99999999999999999999",
            2,
            format!("error: invalid value '99999999999999999999' for '--vfs <VFS>': {RANGE} 0 to 254"),
        ),
        (
            "serve --guest-memory 0",
            2,
            format!("error: invalid value '0' for '--guest-memory <MIB>': {RANGE} 1 to 18446744073709551615"),
        ),
        (
            "serve --ibsim-udp 0",
            2,
            format!("error: invalid value '0' for '--ibsim-udp <PORT>': {RANGE} 1 to 65534"),
        ),
        (
            "capture --count -1 x",
            2,
            format!("error: invalid value '-1' for '--count <COUNT>': {RANGE} 1 to 18446744073709551615"),
        ),
        ("why 1 --port -1", 2, format!("error: invalid value '-1' for '--port <PORT>': {RANGE} 1 to 254")),
        (
            "set vf 1 limits rate=-5",
            2,
            format!("error: invalid value 'rate=-5' for '<LIMITS>...': {RANGE} 0 to 4294967295"),
        ),
        ("show fabric --wait-up", 2, "error: --wait-up waits for VFs: use it with vhca show vfs".to_owned()),
        ("show vfs --wait-up 0", 2, format!("error: invalid value '0' for '--wait-up [<SECONDS>]': {RANGE} 1 to 86400")),
        ("serve --attach ibsim:s/a --sm lite", 2, format!("vhca: attach and sm exclude each other, {ATTACHED}")),
        (
            "serve --attach ibsim:s/a --config CONFIG",
            2,
            format!("vhca: attach and topology exclude each other, {ATTACHED}"),
        ),
        ("serve --pf H1-1,H1-1", 2, "vhca: pf names H1-1 twice: name it once".to_owned()),
        ("serve --pf mgmt,mgmt-1", 2, "vhca: pf names mgmt-1 twice, once as mgmt: name it once".to_owned()),
        (
            "serve --pf S1",
            2,
            "vhca: S1 is a switch, and cannot be in pf or bare or be the manager: name one of H1-1, H1-2, H2-1, H2-2, mgmt, \
             mgmt-2"
                .to_owned(),
        ),
        (
            "serve --pf H1-1 --manager H1-1",
            2,
            "vhca: H1-1 is both manager and in pf: name another manager, or leave it out of pf".to_owned(),
        ),
        ("serve --bare H1-1,H1-1", 2, "vhca: bare names H1-1 twice: name it once".to_owned()),
        ("serve --bare mgmt-1,mgmt", 2, "vhca: bare names mgmt twice, once as mgmt-1: name it once".to_owned()),
        (
            "serve --bare H9",
            2,
            "vhca: there is no adapter \"H9\" in the topology: name one of H1-1, H1-2, H2-1, H2-2, mgmt, mgmt-2".to_owned(),
        ),
        (
            "serve --bare H1-1 --pf H1-2,H1-1",
            2,
            "vhca: H1-1 is both in pf and in bare: leave it out of one of them".to_owned(),
        ),
        (
            "serve --bare mgmt",
            2,
            "vhca: mgmt is both the host of the subnet manager and in bare: name another manager, or leave it out of bare"
                .to_owned(),
        ),
    ] {
        let mut arguments: Vec<&str> = arguments.split(' ').collect();
        arguments.extend(["--control", control]);
        for argument in &mut arguments {
            *argument = if *argument == "CONFIG" { config } else { argument };
        }
        let output = vhca(&arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert_eq!(stderr(&output).lines().next(), Some(&line[..]), "{arguments:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn without_a_socket_named_the_user_s_own_is_tried_and_then_that_of_the_packaged_service() {
    let packaged = std::path::Path::new("/run/vhca");
    assert!(
        !packaged.exists(),
        "stop the packaged service, which would answer"
    );
    let folder = tempfile::tempdir().expect("a folder");
    for (arguments, name) in [
        (&["show", "vfs"][..], "control.sock"),
        (&["env"], "control.umad"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_vhca"))
            .args(arguments)
            .args(["--wait", "0"])
            .env_remove("VHCA_CONTROL")
            .env("VHCA_UMAD_PRELOAD", "/dev/null")
            .env("XDG_RUNTIME_DIR", folder.path())
            .output()
            .expect("the binary runs");
        let own = folder.path().join("vhca").join(name);
        let line = format!(
            "vhca: no service answers at {} or /run/vhca/{name}; start `vhca serve`, or name its control socket with \
             --control: No such file or directory (os error 2)\n",
            own.display()
        );
        assert_eq!((stderr(&output), output.status.code()), (line, Some(1)));
        assert!(
            !folder.path().join("vhca").exists(),
            "a client creates no folder"
        );
    }
}

#[test]
fn an_empty_variable_is_one_that_is_not_set() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_vhca"))
        .args(["show", "vfs", "--wait", "0"])
        .env("VHCA_CONTROL", "")
        .env("XDG_RUNTIME_DIR", folder.path())
        .output()
        .expect("the binary runs");
    let own = folder.path().join("vhca/control.sock");
    let line = format!("vhca: no service answers at {} or ", own.display());
    assert!(stderr(&output).starts_with(&line), "{}", stderr(&output));
}

#[test]
fn a_command_whose_reader_is_gone_ends_without_a_word() {
    for arguments in [
        &["demo"][..],
        &["generate", "completions", "bash"],
        &["--help"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vhca"))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("an end");
        assert_eq!(stderr(&output), "", "{arguments:?}");
        let status = output.status;
        assert!(status.success() || status.signal() == Some(13), "{status}");
    }
}

#[test]
fn cases_of_the_mux_print_an_object_each_with_its_target() {
    let cases = ["tid-roundtrip", "path-cached"];
    let list = cases.join(",");
    let size = ["--vfs", "4", "--live", "50", "--runs", "1"];
    let arguments = ["bench", "--json", "--case", &list];
    let output = vhca(&[&arguments[..], &size].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines = json_lines(&output);
    let names: Vec<_> = lines
        .iter()
        .filter_map(|line| line["case"].as_str())
        .collect();
    assert_eq!(names, cases);
    for line in &lines {
        assert_eq!((&line["vfs"], &line["live"]), (&4.into(), &50.into()));
        for figure in ["ops", "ns_per_op", "mads_per_s", "target_ns", "ratio"] {
            assert!(
                line[figure].as_f64().is_some_and(|value| value > 0.0),
                "{figure}: {line}"
            );
        }
    }
}

#[test]
fn a_capture_file_that_cannot_be_made_is_named_with_the_reason() {
    let output = vhca(&["demo", "--capture", "/nonexistent/demo.pcap"]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("/nonexistent/demo.pcap"), "{message}");
    assert!(message.contains("No such file"), "{message}");
}

#[test]
fn a_full_disk_ends_the_demo_with_the_files_name_and_the_reason() {
    let output = vhca(&["demo", "--capture", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr(&output);
    assert!(message.contains("/dev/full"), "{message}");
    assert!(message.contains("No space left"), "{message}");
}

#[test]
fn a_lab_without_guests_to_boot_says_what_to_run() {
    let cache = tempfile::tempdir().unwrap();
    let cache_path = cache.path().to_str().unwrap();
    let output = vhca(&["lab", "--cache", cache_path]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.contains("run tests/guest/prepare.sh first"), "{told}");

    std::fs::write(cache.path().join("boot"), "").unwrap();
    let output = vhca(&["lab", "--cache", cache_path, "--kernel", "6.12"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.contains("no kernel 6.12"), "{told}");

    let output = vhca(&["lab", "--cache", cache_path, "--kernel", "9.9"]);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.contains("prepare.sh 9.9"), "{told}");
}

#[test]
fn a_lab_refuses_what_names_no_vf_and_two_guests_on_one() {
    let output = vhca(&["lab", "--guest", "H1-1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("HOST/N"), "{}", stderr(&output));

    let cache = tempfile::tempdir().unwrap();
    let kernel = cache.path().join("kernel-6.1");
    std::fs::create_dir(&kernel).unwrap();
    for file in [cache.path().join("boot"), kernel.join("vmlinuz")] {
        std::fs::write(file, "").unwrap();
    }
    let cache = cache.path().to_str().unwrap();
    let output = vhca(&["lab", "--cache", cache, "--guest", "H1-1/1,H1-1/1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("named twice"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_console_that_is_not_there_is_told_with_who_knows_better() {
    let output = vhca(&["console", "/nonexistent/console"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("vhca lab prints the consoles"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_program_is_not_tied_to_a_parent_that_is_gone() {
    let output = vhca(&["tied", "--parent", "1", "--", "echo", "running"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(stderr(&output).contains("is gone"), "{}", stderr(&output));
}

#[test]
fn a_function_that_vfio_cannot_give_is_named_with_the_next_step() {
    for (address, part) in [
        ("1:0", "is no PCI address such as 0000:01:00.0"),
        (
            "fffe:ff:1f.7",
            "there is no PCI function fffe:ff:1f.7: lspci",
        ),
    ] {
        for command in [&["tour"][..], &["join", "ff12::1"], &["ping", "host"]] {
            let output = vhca(&[&["vfio", address], command].concat());
            let told = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{told}");
            assert!(told.contains(part) && told.lines().count() == 1, "{told}");
        }
    }
    let output = vhca(&["vfio", "01:00.0", "join", "fe80::1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("the GID of a group such as ff12::4242"));
}
