//! The rules of the workspace's layout: who may use whom, and what may stand where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vhca_tests::cargo::cargo;

/// What each package may use of the packages in the tree. `ALL` stands for every other one.
const MAY_USE: &[(&str, &[&str])] = &[
    ("ib-wire", &[]),
    ("ib-vtime", &[]),
    ("mlx4-defs", &["ib-wire"]),
    ("hca-api", &["ib-wire", "ib-vtime"]),
    ("ib-transport", &["ib-wire", "ib-vtime"]),
    ("ib-capture", &["ib-wire", "ib-vtime"]),
    (
        "ib-fabric",
        &[
            "hca-api",
            "ib-wire",
            "ib-vtime",
            "ib-capture",
            "ib-transport",
        ],
    ),
    ("hca-functions", &["hca-api", "ib-wire", "ib-vtime"]),
    (
        "emulated-hca",
        &[
            "hca-api",
            "hca-functions",
            "ib-wire",
            "ib-vtime",
            "ib-transport",
            "ib-fabric",
        ],
    ),
    ("ib-endpoint", &["ib-wire", "ib-vtime", "hca-api"]),
    (
        "subnet-lite",
        &["ib-wire", "ib-vtime", "hca-api", "ib-endpoint"],
    ),
    (
        "ibsim-link",
        &["hca-api", "ib-wire", "ib-vtime", "ib-endpoint", "ib-fabric"],
    ),
    (
        "ib-ipoib",
        &["hca-api", "ib-endpoint", "ib-wire", "ib-vtime"],
    ),
    ("ib-trunk", &["hca-api", "ib-wire", "ib-vtime", "ib-fabric"]),
    ("linux-abi", &["hca-api", "ib-wire"]),
    (
        "umad-link",
        &["hca-api", "ib-endpoint", "ib-wire", "ib-vtime", "linux-abi"],
    ),
    (
        "verbs-link",
        &["hca-api", "ib-endpoint", "ib-wire", "ib-vtime", "linux-abi"],
    ),
    ("vhca-umad", &["linux-abi", "umad-link", "verbs-link"]),
    (
        "hca-linux",
        &[
            "hca-api",
            "ib-endpoint",
            "ib-wire",
            "ib-vtime",
            "linux-abi",
            "umad-link",
        ],
    ),
    ("hca-vfio", &["mlx4-driver", "ib-vtime"]),
    (
        "vf-tunnel",
        &["ib-wire", "ib-vtime", "mlx4-defs", "hca-api"],
    ),
    ("mad-mux", &["vf-tunnel", "ib-wire", "ib-vtime"]),
    ("cm-paravirt", &["vf-tunnel", "ib-wire", "ib-vtime"]),
    ("mcast-agg", &["vf-tunnel", "ib-wire", "ib-vtime"]),
    (
        "pf-context",
        &[
            "mad-mux",
            "cm-paravirt",
            "mcast-agg",
            "vf-tunnel",
            "ib-endpoint",
            "hca-api",
            "ib-wire",
            "ib-vtime",
        ],
    ),
    ("vf-queues", &["hca-api", "ib-vtime"]),
    (
        "vf-uverbs",
        &["vf-queues", "verbs-link", "hca-api", "ib-wire", "ib-vtime"],
    ),
    ("vf-pci", &["hca-api", "ib-vtime"]),
    (
        "vf-proxy",
        &[
            "vf-pci",
            "vf-queues",
            "vf-tunnel",
            "mlx4-defs",
            "hca-api",
            "ib-endpoint",
            "ib-wire",
            "ib-vtime",
        ],
    ),
    (
        "mlx4-driver",
        &[
            "vf-tunnel",
            "mlx4-defs",
            "hca-api",
            "ib-endpoint",
            "ib-wire",
            "ib-vtime",
        ],
    ),
    // A VMM links these wherever the adapter is: no fabric, no PF.
    ("vhca-device", &["vf-pci", "hca-api", "ib-vtime"]),
    // A VMM with VFs of a service links these: no adapter, no server.
    (
        "vhca-remote",
        &["vf-pci", "vhca-device", "vhca-vfio-user-codec"],
    ),
    // A VMM links these with the adapter: no server, no command, no exercise.
    (
        "vhca",
        &[
            "ib-wire",
            "ib-vtime",
            "hca-api",
            "ib-capture",
            "emulated-hca",
            "hca-functions",
            "ib-endpoint",
            "subnet-lite",
            "pf-context",
            "vf-pci",
            "vf-proxy",
            "vf-tunnel",
            "vhca-device",
            "vhca-remote",
            "vhca-trunk",
        ],
    ),
    ("vhca-receiver", &[]),
    // A client of the service links these: no adapter, no PF.
    ("vhca-control", &["ib-vtime"]),
    // Both ends of vfio-user use it: no device, no socket.
    ("vhca-vfio-user-codec", &[]),
    (
        "vhca-vfio-user",
        &[
            "vhca-device",
            "vhca-receiver",
            "vhca-vfio-user-codec",
            "vf-pci",
            "hca-api",
            "ib-vtime",
        ],
    ),
    // Diagnoses are a function of a snapshot: no fabric, no adapter, no service.
    (
        "vhca-diagnosis",
        &["pf-context", "hca-api", "ib-wire", "ib-vtime"],
    ),
    (
        "vhca-service",
        &[
            "linux-abi",
            "vhca",
            "vhca-control",
            "vhca-diagnosis",
            "vhca-receiver",
            "vhca-vfio-user",
            "ibsim-link",
            "ib-trunk",
            "vhca-trunk",
            "umad-link",
            "verbs-link",
            "ib-ipoib",
            "pf-context",
            "vf-pci",
            "vf-proxy",
            "vf-uverbs",
            "mad-mux",
            "cm-paravirt",
            "mcast-agg",
            "vf-tunnel",
            "subnet-lite",
            "emulated-hca",
            "hca-functions",
            "hca-linux",
            "ib-endpoint",
            "ib-capture",
            "hca-api",
            "ib-wire",
            "ib-vtime",
        ],
    ),
    (
        "vhca-trunk",
        &["ib-fabric", "ib-trunk", "ib-wire", "ib-vtime"],
    ),
    // Nothing but the command and the tests uses exercises.
    ("vhca-exercises", ALL),
    ("vhca-command", ALL),
    ("vhca-tests", ALL),
];

const ALL: &[&str] = &["*"];

/// What a package's own tests may use besides.
const MAY_TEST_WITH: &[(&str, &[&str])] = &[
    ("pf-context", &["vf-proxy"]),
    ("hca-functions", &["emulated-hca", "ib-endpoint"]),
    ("vf-pci", &["emulated-hca", "ib-wire"]),
    ("vf-proxy", &["emulated-hca"]),
    ("vf-uverbs", &["emulated-hca", "hca-functions"]),
    ("verbs-link", &["emulated-hca"]),
    ("vhca-device", &["emulated-hca", "ib-wire"]),
    ("vhca", &["mlx4-defs", "mlx4-driver"]),
    ("vhca-vfio-user", &["emulated-hca", "ib-wire"]),
];

/// Packages that may own file descriptors, threads and clocks.
const MAY_DO_IO: &[&str] = &[
    "vhca-device",
    "vhca-remote",
    "vhca",
    "vhca-control",
    "vhca-receiver",
    "vhca-vfio-user",
    "vhca-trunk",
    "vhca-service",
    "vhca-exercises",
    "vhca-command",
    "vhca-tests",
    "vhca-umad",
    "hca-linux",
    "hca-vfio",
];

/// Packages that may hold `unsafe` blocks, each block justified.
const MAY_BE_UNSAFE: &[&str] = &[
    "vhca-remote",
    "vhca-vfio-user",
    "vhca-service",
    "vhca-umad",
    "hca-linux",
    "hca-vfio",
];

/// What no sans-I/O crate may name.
const IO_PATHS: &[&str] = &[
    "std::net",
    "std::fs",
    "std::os",
    "std::process",
    "std::thread",
    "std::env",
    "std::time::Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
];

const FOLDERS: &[&str] = &[
    "cm-paravirt",
    "hw",
    "mad-mux",
    "mcast-agg",
    "pf-context",
    "tests",
    "tunnel",
    "vf-proxy",
    "vmm-glue",
];

/// Names that say nothing of what is inside.
const EMPTY_NAMES: &[&str] = &[
    "base", "common", "helper", "helpers", "misc", "prelude", "util", "utils",
];

const MAX_LINES: usize = 700;

const LICENCE: &str = "Apache-2.0 OR BSD-3-Clause";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package is a folder of the workspace")
        .to_path_buf()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A package of the workspace, as `cargo metadata` tells.
struct Package {
    name: String,
    folder: PathBuf,
    licence: String,
    /// Dependencies in the tree.
    uses: BTreeSet<String>,
    /// Dependencies in the tree that only its tests have.
    tests_with: BTreeSet<String>,
    /// All dependencies.
    depends_on: BTreeSet<String>,
}

fn packages() -> Vec<Package> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    // Only a dependency in the tree has a path.
    let in_tree = |package: &Value, tests: bool| {
        array(&package["dependencies"])
            .iter()
            .filter(|dependency| dependency["path"].is_string())
            .filter(|dependency| (dependency["kind"] == "dev") == tests)
            .map(|dependency| text(&dependency["name"]))
            .collect()
    };
    array(&metadata["packages"])
        .iter()
        .map(|package| Package {
            name: text(&package["name"]),
            folder: Path::new(&text(&package["manifest_path"]))
                .parent()
                .expect("a manifest lies in a folder")
                .to_path_buf(),
            licence: text(&package["license"]),
            uses: in_tree(package, false),
            tests_with: in_tree(package, true),
            depends_on: array(&package["dependencies"])
                .iter()
                .map(|dependency| text(&dependency["name"]))
                .collect(),
        })
        .collect()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn forbidden_edges<'a>(
    edges: impl IntoIterator<Item = (&'a str, &'a str)>,
    tables: &[&[(&'static str, &'static [&'static str])]],
) -> Vec<(&'a str, &'a str)> {
    let mut table = BTreeMap::<_, Vec<_>>::new();
    for (user, used) in tables.concat() {
        table.entry(user).or_default().extend(used);
    }
    edges
        .into_iter()
        .filter(|(user, used)| {
            let allowed = table.get(user).map_or(&[][..], Vec::as_slice);
            allowed != ALL && !allowed.contains(used)
        })
        .collect()
}

/// Every Rust file below a folder, without those that a build made.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the workspace") {
            let path = entry.expect("an entry of a folder").path();
            let name = path.file_name().unwrap_or_default();
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "{} has no code", folder.display());
    files.sort();
    files
}

/// The numbers of the lines that name one of `words` outside a comment.
fn lines_naming<'a>(source: &'a str, words: &[&str]) -> Vec<(usize, &'a str)> {
    (1..)
        .zip(source.lines())
        .filter(|(_, line)| {
            let code = line.split("//").next().unwrap_or_default();
            words.iter().any(|word| code.contains(word))
        })
        .collect()
}

/// Asserts that no file of the packages outside `except` names one of `words`.
fn assert_not_named(words: &[&str], except: &[&str]) {
    for package in packages() {
        if except.contains(&package.name.as_str()) {
            continue;
        }
        for file in rust_files(&package.folder.join("src")) {
            let source = read(&file);
            let found = lines_naming(&source, words);
            assert!(found.is_empty(), "{}: {found:?}", file.display());
        }
    }
}

#[test]
fn packages_use_only_what_the_design_lets_them() {
    let packages = packages();
    let edges = |of: fn(&Package) -> &BTreeSet<String>| {
        packages.iter().flat_map(move |package| {
            let used = of(package).iter();
            used.map(|used| (package.name.as_str(), used.as_str()))
        })
    };
    assert_eq!(
        forbidden_edges(edges(|package| &package.uses), &[MAY_USE]),
        []
    );
    let tests = edges(|package| &package.tests_with);
    assert_eq!(forbidden_edges(tests, &[MAY_USE, MAY_TEST_WITH]), []);
}

#[test]
fn an_edge_outside_the_table_is_found() {
    let edges = [
        ("mad-mux", "vf-tunnel"),
        ("mad-mux", "cm-paravirt"),
        ("unknown", "ib-wire"),
        ("vhca", "pf-context"),
    ];
    assert_eq!(
        forbidden_edges(edges, &[MAY_USE]),
        [("mad-mux", "cm-paravirt"), ("unknown", "ib-wire")]
    );
}

#[test]
fn a_vmm_with_the_vfs_of_a_service_links_no_fabric() {
    let output = cargo()
        .args(["tree", "--package", "vhca", "--no-default-features"])
        .args(["--features", "remote", "--edges", "normal"])
        .args(["--prefix", "none", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let tree = String::from_utf8_lossy(&output.stdout);
    let linked: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(linked.contains("vhca-remote"), "{tree}");
    for package in ["emulated-hca", "ib-fabric", "subnet-lite", "pf-context"] {
        assert!(!linked.contains(package), "{package}: {tree}");
    }
}

#[test]
fn every_package_is_in_the_table() {
    let known: BTreeSet<_> = MAY_USE.iter().map(|(name, _)| *name).collect();
    for package in packages() {
        assert!(known.contains(package.name.as_str()), "{}", package.name);
    }
}

/// Files with the texts of the licences; each crate that can be published has links to them.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-BSD-3-Clause"];

#[test]
fn every_package_has_the_licence_and_the_lints_of_the_workspace() {
    for package in packages() {
        assert_eq!(package.licence, LICENCE, "{}", package.name);
        let manifest = read(&package.folder.join("Cargo.toml"));
        assert!(
            manifest.contains("[lints]\nworkspace = true\n"),
            "{}",
            package.name
        );
        if manifest.contains("\npublish = false\n") {
            continue;
        }
        // What crates.io shows, and what goes into the archive of a crate.
        for property in ["description", "documentation", "keywords", "categories"] {
            let line = format!("\n{property} = ");
            assert!(manifest.contains(&line), "{}: {property}", package.name);
        }
        for file in ["README.md", LICENCES[0], LICENCES[1]] {
            assert!(!read(&package.folder.join(file)).is_empty());
        }
    }
    for licence in LICENCES {
        assert!(!read(&root().join(licence)).is_empty());
    }
}

#[test]
fn versions_of_dependencies_stand_in_the_workspace_manifest_only() {
    for package in packages() {
        let manifest = read(&package.folder.join("Cargo.toml"));
        let dependencies = manifest
            .lines()
            .skip_while(|line| !line.ends_with("dependencies]"))
            .filter(|line| line.contains('=') && !line.starts_with('['));
        for line in dependencies {
            assert!(
                line.contains("workspace = true"),
                "{}: {line}",
                package.name
            );
        }
    }
}

#[test]
fn every_dependency_is_used() {
    for package in packages() {
        let sources: String = rust_files(&package.folder)
            .iter()
            .map(|f| read(f))
            .collect();
        for dependency in &package.depends_on {
            let name = dependency.replace('-', "_");
            assert!(sources.contains(&name), "{}: {name}", package.name);
        }
    }
}

#[test]
fn the_lock_file_holds_one_version_of_each_rust_vmm_crate() {
    let lock = read(&root().join("Cargo.lock"));
    let versions = |name: &str| lock.matches(&format!("name = \"{name}\"\n")).count();
    assert_eq!(versions("vmm-sys-util"), 1);
    for name in ["vm-memory", "kvm-bindings", "vfio-bindings"] {
        assert!(versions(name) <= 1, "{name}");
    }
}

#[test]
fn the_top_level_has_the_folders_of_the_design() {
    for entry in fs::read_dir(root()).expect("the workspace") {
        let entry = entry.expect("an entry of the workspace");
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !name.starts_with('.') && name != "target" {
            assert!(FOLDERS.contains(&name.as_str()), "{name}");
        }
    }
}

#[test]
fn no_module_has_a_name_that_says_nothing() {
    for file in rust_files(&root()) {
        let path = file.strip_prefix(root()).expect("below the root");
        for part in path.with_extension("").iter() {
            let name = part.to_string_lossy();
            assert!(!EMPTY_NAMES.contains(&name.as_ref()), "{}", path.display());
        }
    }
}

#[test]
fn sans_io_packages_name_no_clock_socket_file_or_thread() {
    assert_not_named(IO_PATHS, MAY_DO_IO);
}

#[test]
fn sans_io_packages_hold_no_unsafe_code() {
    assert_not_named(&["unsafe {", "unsafe fn", "unsafe impl"], MAY_BE_UNSAFE);
    for package in packages() {
        let name = package.name.as_str();
        if !MAY_DO_IO.contains(&name) {
            let crate_root = read(&package.folder.join("src/lib.rs"));
            assert!(crate_root.contains("#![forbid(unsafe_code)]"), "{name}");
        }
    }
}

#[test]
fn a_forbidden_name_counts_outside_comments_only() {
    let source = "// std::net\nuse std::net::TcpStream; // x\n/// SystemTime\n";
    let found = lines_naming(source, IO_PATHS);
    assert_eq!(found, [(2, "use std::net::TcpStream; // x")]);
}

#[test]
fn no_file_is_longer_than_a_reader_can_hold() {
    for file in rust_files(&root()) {
        let lines = read(&file).lines().count();
        assert!(lines <= MAX_LINES, "{}: {lines} lines", file.display());
    }
}
