//! The Debian package: its contents, and a bare Debian that installs, uses and purges it.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

mod bare_debian;
mod images;

use std::path::{Path, PathBuf};
use std::process::Command;

use bare_debian::BareDebian;
use vhca_tests::docs::root;
use vhca_tests::effort::is_full;
use vhca_tests::live::binary;

/// Files of the package that users look for.
const FILES: [&str; 13] = [
    "/usr/bin/vhca",
    "/usr/lib/vhca/libvhca_umad.so",
    "/usr/lib/systemd/system/vhca.service",
    "/usr/share/man/man1/vhca.1.gz",
    "/usr/share/man/man1/vhca-serve.1.gz",
    "/usr/share/man/man1/vhca-why.1.gz",
    "/usr/share/bash-completion/completions/vhca",
    "/usr/share/zsh/vendor-completions/_vhca",
    "/usr/share/fish/vendor_completions.d/vhca.fish",
    "/usr/share/doc/vhca/copyright",
    "/usr/share/doc/vhca/serve.md",
    "/usr/share/doc/vhca/examples/vhca.toml",
    "/etc/vhca/vhca.toml",
];

/// Steps of an administrator with the package: install it, start the service as its unit does, use that as a member of
/// its group, upgrade, remove and purge.
const STORY: &str = r#"
set -x
fails() { if "$@"; then return 1; fi; }
[ -z "$(dpkg --audit)" ]
dpkg -i /vhca.deb
[ "$(dpkg-query -W -f '${Status}' vhca)" = "install ok installed" ]
[ "$(id -gn vhca)" = vhca ]
vhca --version
gzip -t /usr/share/man/man1/*vhca*
. /usr/share/bash-completion/completions/vhca
complete -p vhca

# systemd makes the folder.
install -d -m 711 -o vhca -g vhca /run/vhca
as() { setpriv --reuid "$1" --regid "$1" --init-groups "${@:2}"; }
umask 077
as vhca $(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/vhca.service) --control /run/vhca/control.sock &
umask 022
useradd --groups vhca member
as member vhca show vfs --wait-up
as member vhca run -- cat /sys/class/infiniband/vhca0/node_guid
# Without variables: the library in /etc/ld.so.preload, and a file that says which service. A program with rights that its user
# does not have sees neither.
printf 'socket = "/run/vhca/control.umad"\n' >/run/vhca/client.toml
echo /usr/lib/vhca/libvhca_umad.so >/etc/ld.so.preload
as member env -i /bin/cat /sys/class/infiniband/vhca0/node_guid
chmod 666 /run/vhca/client.toml
fails as member env -i /bin/cat /sys/class/infiniband/vhca0/node_guid
chmod 644 /run/vhca/client.toml
install -m 4755 /bin/cat /usr/bin/cat-of-root
if [ "$(as member cat-of-root /etc/shadow | wc -l)" != 0 ]; then
    fails as member cat-of-root /sys/class/infiniband/vhca0/node_guid
    fails as member env VHCA_UMAD_SOCKET=/run/vhca/control.umad cat-of-root /sys/class/infiniband/vhca0/node_guid
fi
rm /etc/ld.so.preload /run/vhca/client.toml /usr/bin/cat-of-root
useradd stranger
fails as stranger vhca show vfs --wait 0
fails as stranger vhca run --wait 0 -- true
as member vhca stop
wait
userdel member
userdel stranger

# An upgrade, then the end.
dpkg -i /vhca.deb
dpkg -r vhca
[ -f /etc/vhca/vhca.toml ]
id vhca
dpkg -P vhca
fails getent passwd vhca
fails getent group vhca
[ "$(find / -xdev -name '*vhca*')" = /vhca.deb ]
echo all is well
"#;

/// Builds the package of the programs that the suites run, and returns its path.
fn package(folder: &Path) -> PathBuf {
    let script = root().join("vmm-glue/service/packaging/build-deb.sh");
    let built = Command::new(script)
        .arg("--from")
        .arg(binary().parent().unwrap())
        .arg("--output")
        .arg(folder)
        .output()
        .unwrap();
    assert!(built.status.success(), "{built:?}");
    PathBuf::from(String::from_utf8(built.stdout).unwrap().trim_end())
}

/// Returns what `dpkg-deb` says of a package.
fn dpkg_deb(arguments: &[&str], package: &Path) -> String {
    let mut command = Command::new("dpkg-deb");
    command.arg(arguments[0]).arg(package).args(&arguments[1..]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns `false` where packages cannot be made.
fn has_dpkg() -> bool {
    let has = Command::new("dpkg-deb").arg("--version").output().is_ok();
    if !has {
        eprintln!("not run: there is no dpkg-deb");
    }
    has
}

#[test]
fn the_package_has_the_workspace_s_version_and_all_that_users_look_for() {
    if !has_dpkg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path());
    let version = dpkg_deb(&["--field", "Version"], &package);
    assert_eq!(version.trim_end(), env!("CARGO_PKG_VERSION"));
    let contents = dpkg_deb(&["--contents"], &package);
    for file in FILES {
        let ends = |line: &str| line.ends_with(&format!(" .{file}"));
        assert!(contents.lines().any(ends), "no {file} in {contents}");
    }
    let is_root = |line: &str| line.contains(" root/root ");
    assert!(contents.lines().all(is_root), "{contents}");
}

#[test]
fn every_link_in_the_package_s_documents_leads_to_a_file_of_it() {
    if !has_dpkg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path());
    let tree = folder.path().join("tree");
    dpkg_deb(&["--extract", tree.to_str().unwrap()], &package);
    let documents = tree.join("usr/share/doc/vhca");
    let names: Vec<String> = std::fs::read_dir(&documents)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut links = 0;
    for name in names.iter().filter(|name| name.ends_with(".md")) {
        let text = std::fs::read_to_string(documents.join(name)).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            let path = link.split('#').next().unwrap();
            if path.is_empty() || path.contains(':') {
                continue;
            }
            links += 1;
            assert!(
                names.iter().any(|name| name == path),
                "{name} leads to {link}"
            );
        }
    }
    assert!(links > 5, "{links} links");
    for file in [
        "alerts.yml",
        "containers.md",
        "dashboard.json",
        "vfio-user.md",
        "verbs-ci.yml",
    ] {
        assert!(names.iter().any(|name| name == file), "{file}");
    }
}

#[test]
fn lintian_has_nothing_to_say_of_the_package() {
    if !has_dpkg() || Command::new("lintian").arg("--version").output().is_err() {
        eprintln!("not run: lintian, which is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path());
    let mut lintian = Command::new("lintian");
    let found = lintian.arg("--allow-root").arg(package).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{found:?}");
}

/// The release's command needs no library, and finds the one for programs in its archive.
#[test]
fn the_archive_of_a_release_runs_a_program_where_it_is_unpacked() {
    if !is_full() {
        eprintln!("not run without VHCA_FULL=1: it builds the command once more");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = root().join("vmm-glue/service/packaging/release.sh");
    let made = Command::new(script)
        .arg("--output")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let steps = "sha256sum -c SHA256SUMS && tar -xzf vhca-*-linux.tar.gz && export PATH=$PWD/vhca/bin XDG_RUNTIME_DIR=$PWD\n\
        ! /usr/bin/readelf --program-headers vhca/bin/vhca | /usr/bin/grep INTERP\n\
        vhca serve --verbs --vfs 1 >log 2>&1 &\n\
        vhca show vfs --wait-up && vhca run --node H1-1/1 -- /usr/bin/ibv_devinfo && vhca stop";
    let ran = Command::new("timeout")
        .args(["60", "bash", "-e", "-c", steps])
        .env_remove("VHCA_CONTROL")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("PORT_ACTIVE"),
        "{ran:?}"
    );
}

#[test]
fn a_bare_debian_installs_uses_and_purges_the_package() {
    if !has_dpkg() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let package = package(folder.path());
    let dependencies = dpkg_deb(&["--field", "Depends"], &package);
    let debian = match BareDebian::new(&dependencies) {
        Ok(debian) => debian,
        Err(reason) => {
            eprintln!("not run: the package in a bare Debian, since {reason}");
            return;
        }
    };
    debian.put(&package, "vhca.deb");
    let output = debian.run(STORY);
    let told = String::from_utf8_lossy(&output.stdout);
    let traced = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{traced}");
    assert!(told.ends_with("all is well\n"), "{told}\n{traced}");
}
