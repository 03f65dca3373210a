//! Options with which no VF could be used.

use crate::bench::Bench;
use crate::report::{Report, Row};

/// Name, lines of the file, and arguments that are mended by the same with 1 in place of 0.
const REFUSED: &[(&str, &str, &str)] = &[
    ("[quotas] tids = 0", "[quotas]\ntids = 0\n", ""),
    (
        "[quotas] sa_requests = 0",
        "[quotas]\nsa_requests = 0\n",
        "",
    ),
    ("[quotas] groups = 0", "[quotas]\ngroups = 0\n", ""),
    ("--guest-memory 0", "", "--guest-memory 0"),
];

pub(crate) fn run(report: &Report) {
    for (fault, file, arguments) in REFUSED {
        let bench = Bench::new(report);
        let serve = |file: &str, arguments: &str| {
            std::fs::write(bench.path().join("vhca.toml"), file).unwrap();
            // With that it stops at once where it starts.
            let serve = format!("vhca serve --config vhca.toml --vfs 1 {arguments}");
            bench.try_run(&format!("timeout -s TERM 2 {serve}"))
        };
        let refused = serve(file, arguments);
        let mended = serve(&file.replace('0', "1"), &arguments.replace('0', "1"));
        let lines: Vec<&str> = refused.lines().filter(|line| !line.is_empty()).collect();
        let told = !refused.contains("ready") && refused.contains('0');
        bench.tell(Row {
            fault: (*fault).to_owned(),
            code: "refused",
            told: lines.join(" / "),
            remedy: "1 or more".to_owned(),
            worked: match (told, mended.contains("ready")) {
                (true, true) => Ok("the service starts".to_owned()),
                _ => Err(format!("{refused}, then {mended}")),
            },
        });
    }
}
