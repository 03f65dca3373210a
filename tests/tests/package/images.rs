//! The library for programs in images: what it asks of their C library, and programs beside which it is loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use vhca_tests::docs::root;
use vhca_tests::effort::is_full;
use vhca_tests::live::{Lab, Shim, binary};

/// The newest version of the C library's symbols that the library may ask for: images with an older one are not supported.
const LIBC: (u32, u32) = (2, 17);

/// Packages of every Debian whose programs print the same each time.
const PACKAGES: [&str; 9] = [
    "bash",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "sed",
    "tar",
];

/// Libraries of every image with the GNU C library.
const LIBRARIES: [&str; 4] = ["libc.so.", "libpthread.so.", "libdl.so.", "ld-linux-"];

/// A program of C that says that it runs.
const RUNS: &str = "#include <stdio.h>\nint main(void) { puts(\"runs\"); return 0; }\n";

/// Prints the paths that its pattern stands for.
const GLOB: &str = "#include <glob.h>\n#include <stdio.h>\nint main(int count, char **words) {\n\
    glob_t found;\n    int error = glob(words[1], 0, 0, &found);\n\
    for (size_t at = 0; !error && at < found.gl_pathc; at++) puts(found.gl_pathv[at]);\n    return error;\n}\n";

/// Puts a folder in the place of `/etc`, with the library that is the first argument to be loaded into all programs, and runs the
/// program that is the third.
const IN_LD_SO_PRELOAD: &str = r#"mkdir "$2" && cp /etc/ld.so.cache "$2" && echo "$1" >"$2/ld.so.preload" &&
mount --bind "$2" /etc && exec "$3""#;

/// Returns the library as a release has it, if its tools are here.
fn of_release() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = LIBRARY.get_or_init(|| {
        let tool = Command::new("cargo-zigbuild").arg("--version").output();
        tool.ok()?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("release-library");
        let script = root().join("vmm-glue/service/packaging/release.sh");
        let made = Command::new(script)
            .args(["--library", "--output"])
            .arg(&folder)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        Some(folder.join("libvhca_umad.so"))
    });
    built.as_deref()
}

/// Returns the library of a release, or else that of the workspace.
fn library() -> PathBuf {
    let built = || binary().with_file_name("libvhca_umad.so");
    of_release().map_or_else(built, Path::to_owned)
}

/// Returns `false` where users may not make namespaces, as in some containers.
fn has_namespaces() -> bool {
    let status = Command::new("unshare").args(["-Urm", "true"]).status();
    let has = status.is_ok_and(|status| status.success());
    if !has {
        eprintln!("not run: programs in namespaces, which are forbidden here");
    }
    has
}

/// The service sees such a program's `/proc` below the folder that is the program's root.
#[test]
fn a_program_in_a_root_of_its_own_has_a_device() {
    if !has_namespaces() || Command::new("ibv_devinfo").output().is_err() {
        return;
    }
    let lab = Lab::serve(&["--verbs"]);
    let new = lab.dir().join("root");
    fs::create_dir(&new).unwrap();
    let script = "mount --rbind / \"$1\" && exec chroot \"$1\" ibv_devinfo";
    let program = [
        "unshare",
        "-Urm",
        "sh",
        "-c",
        script,
        "sh",
        new.to_str().unwrap(),
    ];
    let said = lab.tool(Shim::Vhca, "H1-1/1", &program);
    assert!(said.contains("hca_id:\tvhca1"), "{said}");
}

/// Compiles a program of C. `None` without the compiler.
fn compiled(folder: &Path, compiler: &str, text: &str) -> Option<PathBuf> {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    fs::write(&source, text).unwrap();
    let mut command = Command::new(compiler);
    let Ok(output) = command.arg(&source).arg("-o").arg(&program).output() else {
        eprintln!("not run: a program of C, without {compiler}");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    Some(program)
}

fn objdump(option: &str, library: &Path) -> String {
    let output = Command::new("objdump").arg(option).arg(library).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns `true` if a C library of the version has a symbol by objdump's line, or the library does without.
fn is_there(line: &str) -> bool {
    let Some((_, version)) = line.split_once("(GLIBC_") else {
        // Without a version the linker found no such symbol.
        return line.split_whitespace().any(|word| word == "w");
    };
    let version = version.split(')').next().unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap_or(0)) <= LIBC
}

#[test]
fn the_library_of_a_release_asks_for_glibc_2_17_and_no_other_library() {
    let Some(library) = of_release() else {
        eprintln!("not run: the library of a release, without cargo-zigbuild");
        return;
    };
    let symbols = objdump("-T", library);
    let asked: Vec<&str> = symbols
        .lines()
        .filter(|line| line.contains("*UND*"))
        .collect();
    assert!(asked.len() > 20, "{symbols}");
    for line in asked {
        assert!(is_there(line), "{line}");
    }
    let headers = objdump("-p", library);
    let needed = headers
        .lines()
        .filter_map(|line| line.trim().strip_prefix("NEEDED"));
    for name in needed.map(str::trim) {
        let is_known = LIBRARIES.iter().any(|known| name.starts_with(known));
        assert!(is_known, "{name}");
    }
}

#[test]
fn programs_of_this_machine_run_beside_the_library_as_without_it() {
    if !has_namespaces() {
        return;
    }
    let lab = Lab::serve(&["--verbs"]);
    let folder = tempfile::tempdir().unwrap();
    let all = is_full();
    let compared = Command::new("unshare")
        .args(["-Urmpfniu", "--kill-child", "--mount-proc", "bash"])
        .arg(root().join("tests/tests/package/programs_beside.sh"))
        .args([folder.path(), &library(), &lab.dir().join("umad")])
        .args(if all { &[][..] } else { &PACKAGES })
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&compared.stdout);
    assert!(compared.status.success(), "{compared:?}");
    assert!(!told.contains("DIFFERS"), "{told}");
    let same = told.trim().strip_prefix("same: ").unwrap();
    assert!(same.parse::<usize>().unwrap() > 20, "{told}");
}

/// Runs a program with the library by `/etc/ld.so.preload`.
fn in_ld_so_preload(folder: &Path, program: &Path) -> Output {
    Command::new("unshare")
        .args(["-Urm", "sh", "-c", IN_LD_SO_PRELOAD, "sh"])
        .args([&library(), &folder.join("etc"), program])
        .output()
        .unwrap()
}

/// The loader of musl does not have the libraries that the library asks for, and does not read the file of the GNU loader.
#[test]
fn a_program_of_musl_runs_with_ld_so_preload_and_vhca_run_and_fails_with_ld_preload() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path(), "musl-gcc", RUNS) else {
        return;
    };
    let mut command = Command::new(&program);
    let output = command.env("LD_PRELOAD", library()).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("Error loading shared library"), "{said}");
    let lab = Lab::serve(&["--verbs"]);
    let mut command = lab.on(Shim::Vhca, "H1-1/1", &[program.to_str().unwrap()]);
    let output = command.output().unwrap();
    assert_eq!(output.stdout, b"runs\n", "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("is linked with musl: it will see neither the VF"),
        "{said}"
    );
    if has_namespaces() {
        let output = in_ld_so_preload(folder.path(), &program);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, b"runs\n", "{output:?}");
    }
}

#[test]
fn patterns_of_the_c_library_lead_to_the_device_and_to_the_host() {
    let lab = Lab::serve(&["--verbs"]);
    let Some(program) = compiled(lab.dir(), "cc", GLOB) else {
        return;
    };
    for (pattern, expected) in [
        ("/sys/class/infini*/vhca1", "/sys/class/infiniband/vhca1\n"),
        ("/et\\c/passw?", "/etc/passwd\n"),
    ] {
        let words = [program.to_str().unwrap(), pattern];
        assert_eq!(lab.tool(Shim::Vhca, "H1-1/1", &words), expected);
    }
}
