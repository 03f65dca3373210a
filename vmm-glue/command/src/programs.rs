//! Unmodified programs on the ports of a running service: the preload library and the environment
//! that they need.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use thiserror::Error;
use umad_link::{HELLO_REPLY_SIZE, Hello, HelloReply, Purpose, sysfs};
use vhca_control::protocol::{Request, Sockets};
use vhca_control::{PlaceError, Places, Remote};

use crate::packages::{daemon, is_in_path, package_of};
use crate::program_file::{Blind, ProgramFile};

/// The preload library's file.
const LIBRARY: &str = "libvhca_umad.so";

/// Pause between two looks at ports that are not active yet.
const PAUSE: Duration = Duration::from_millis(50);

/// Time after which a command prints the ports that it waits for.
const SILENCE: Duration = Duration::from_millis(500);

/// Why a program cannot be run.
#[derive(Debug, Error)]
pub(crate) enum ProgramError {
    /// The preload library is nowhere.
    #[error(
        "cannot find {LIBRARY} in {0}; build it with `cargo build --release`, or say where it is with --preload"
    )]
    NoLibrary(String),
    /// A path cannot stand in the environment, or does not exist.
    #[error("{}: cannot be used", .0.display())]
    Path(PathBuf, #[source] io::Error),
    /// No service can be had.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A service is there and does not answer.
    #[error("the service at {} does not answer; see its log", .0.display())]
    Silent(PathBuf, #[source] io::Error),
    /// The service has no such adapters.
    #[error("the service has no {0:?} to run a program on; vhca show fabric lists its nodes")]
    NoNode(String),
    /// Sysfs has no device of that name, or another has it.
    #[error(
        "{0:?} is no name for the device: use 1 to 63 letters, digits, _, - and ., and none that an adapter of umad has"
    )]
    DeviceName(String),
    /// The program cannot be started.
    #[error("cannot run {}", .0.display())]
    Start(PathBuf, #[source] io::Error),
    /// The program is not there, and a package has it.
    #[error("cannot run {0}: there is no such program; install the package {1}")]
    NotInstalled(String, &'static str),
    /// The program is outside the search path.
    #[error("cannot run {}: it is not in PATH; run {}", .0.display(), .1.display())]
    NotInPath(PathBuf, PathBuf),
}

impl ProgramError {
    /// Explains why a program cannot be started. The system also forbids a program that is in no folder of the search path, if
    /// it cannot look into one of these: as with the path of root after `su`.
    fn of_start(program: &OsStr, error: io::Error) -> Self {
        let name = Path::new(program);
        let is_named = program.as_bytes().contains(&b'/');
        let is_absent = match error.kind() {
            io::ErrorKind::NotFound => true,
            io::ErrorKind::PermissionDenied => {
                !is_named && !is_in_path(name, env::var_os("PATH").as_deref())
            }
            _ => false,
        };
        let error = if is_absent {
            io::Error::from(rustix::io::Errno::NOENT)
        } else {
            error
        };
        if is_absent && !is_named {
            if let Some(place) = daemon(name) {
                return Self::NotInPath(name.to_owned(), place);
            }
            let name = program.to_str().unwrap_or_default();
            if let Some(package) = package_of(name) {
                return Self::NotInstalled(name.to_owned(), package);
            }
        }
        Self::Start(name.to_owned(), error)
    }
}

/// Where programs reach a service, by a rule that needs no further word: beside its control socket,
/// under the same name with the ending `umad`.
#[must_use]
pub(crate) fn umad_socket_of(control: &Path) -> PathBuf {
    control.with_extension("umad")
}

/// The preload library: the one named, or else the one beside this program, or in the `lib` folder
/// beside its folder.
///
/// # Errors
/// [`ProgramError::NoLibrary`], [`ProgramError::Path`].
pub(crate) fn find_library(named: Option<&Path>) -> Result<PathBuf, ProgramError> {
    if let Some(named) = named {
        return absolute(named);
    }
    let program = env::current_exe().and_then(|program| program.canonicalize());
    let program = program.map_err(|error| ProgramError::Path(PathBuf::from("vhca"), error))?;
    let folder = program.parent().unwrap_or(&program);
    let places = [
        folder.join(LIBRARY),
        folder.join("deps").join(LIBRARY),
        folder.join("../lib").join(LIBRARY),
        folder.join("../lib/vhca").join(LIBRARY),
    ];
    match places.iter().find(|place| place.is_file()) {
        Some(found) => absolute(found),
        None => Err(ProgramError::NoLibrary(folder.display().to_string())),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, ProgramError> {
    path.canonicalize()
        .map_err(|error| ProgramError::Path(path.to_owned(), error))
}

/// Returns the socket for programs of a service whose control socket answers, if it has one: its options may
/// have put it elsewhere than beside that.
fn umad_socket_by(control: &Path) -> Option<PathBuf> {
    let mut remote = Remote::connect(control).ok()?;
    let reply = remote.ask(&Request::Sockets {}).ok()?;
    serde_json::from_str::<Sockets>(&reply).ok()?.umad
}

/// Asks the first service that answers whether a program can use these adapters, before the program finds none. Where none is at a
/// place, the control socket of the same number, if there is one, is asked for it. `say` gets what [`Places::connect`] says. Returns
/// the service's socket for programs.
///
/// # Errors
/// [`ProgramError::Place`], [`ProgramError::Silent`], [`ProgramError::NoNode`].
pub(crate) fn find_service(
    places: &Places,
    controls: &[PathBuf],
    node: Option<&str>,
    say: &mut dyn FnMut(&str),
) -> Result<PathBuf, ProgramError> {
    let attempt = |beside: &Path| {
        let connected = connect(beside);
        connected
            .map(|connection| (connection, beside.to_owned()))
            .or_else(|error| {
                let mut both = places.paths.iter().zip(controls);
                let control = both.find(|(path, _)| *path == beside);
                let socket = control.and_then(|(_, control)| umad_socket_by(control));
                let socket = socket.filter(|socket| socket != beside).ok_or(error)?;
                Ok((connect(&socket)?, socket))
            })
    };
    let ((connection, socket), _) = places.connect(say, attempt)?;
    ask(&connection, &socket, node, "", Purpose::PendingPorts)?;
    Ok(socket)
}

/// Returns the folder of the files that stand for `/sys` and `/dev/infiniband`, for a program that makes its own system calls.
///
/// # Errors
/// [`ProgramError::Silent`], [`ProgramError::NoNode`].
pub(crate) fn find_tree(
    socket: &Path,
    node: Option<&str>,
    device: Option<&str>,
) -> Result<PathBuf, ProgramError> {
    let silent = |error| ProgramError::Silent(socket.to_owned(), error);
    let connection = connect(socket).map_err(silent)?;
    let device = device.unwrap_or_default();
    let tree = ask(&connection, socket, node, device, Purpose::Tree)?;
    Ok(OsString::from_vec(tree).into())
}

/// Says hello to the service at a socket. Returns its answer.
fn ask(
    connection: &OwnedFd,
    socket: &Path,
    node: Option<&str>,
    device: &str,
    purpose: Purpose<'_>,
) -> Result<Vec<u8>, ProgramError> {
    let adapters = node.unwrap_or_default();
    let hello = Hello {
        adapters,
        device,
        purpose,
    };
    let no_node = || ProgramError::NoNode(adapters.to_owned());
    let silent = |error| ProgramError::Silent(socket.to_owned(), error);
    let hello = hello.encode().ok_or_else(no_node)?;
    let reply = greet(connection, &hello).map_err(|error| silent(error.into()))?;
    match HelloReply::decode(&reply).and_then(|reply| reply.result) {
        Ok(answer) => Ok(answer.to_vec()),
        Err(umad_link::Errno::ENODEV) => Err(no_node()),
        Err(error) => Err(silent(io::Error::other(format!("{error:?}")))),
    }
}

/// Waits until the ports that a program at these adapters will use are active, if a subnet manager is about to make them so,
/// for as long as `limit`. `say` gets a line if that takes long, and one if it takes longer than that.
pub(crate) fn wait_for_ports(
    socket: &Path,
    node: Option<&str>,
    limit: Duration,
    say: &mut dyn FnMut(&str),
) {
    let begun = Instant::now();
    let mut is_said = false;
    while let Some(pending) = pending_ports(socket, node) {
        let waited = begun.elapsed();
        if waited >= limit {
            let seconds = limit.as_secs();
            say(&format!(
                "{pending} is not active after {seconds} s; vhca why {pending} names the fault"
            ));
            return;
        }
        if waited >= SILENCE && !core::mem::replace(&mut is_said, true) {
            say(&format!("waiting for {pending} to become active"));
        }
        sleep(PAUSE);
    }
}

/// Returns the name of the first port that is not active yet. `None` for an older service, which does not say.
fn pending_ports(socket: &Path, adapters: Option<&str>) -> Option<String> {
    let connection = connect(socket).ok()?;
    let names = ask(&connection, socket, adapters, "", Purpose::PendingPorts).ok()?;
    let names = core::str::from_utf8(&names).ok()?;
    names
        .split(',')
        .next()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}

fn connect(socket: &Path) -> io::Result<OwnedFd> {
    let connection = net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    net::connect(&connection, &SocketAddrUnix::new(socket)?)?;
    Ok(connection)
}

/// Says hello. Returns the answer.
fn greet(connection: &OwnedFd, hello: &[u8]) -> rustix::io::Result<Vec<u8>> {
    const PATIENCE: Duration = Duration::from_secs(5);
    set_socket_timeout(connection, Timeout::Recv, Some(PATIENCE))?;
    net::send(connection, hello, SendFlags::NOSIGNAL)?;
    let mut reply = vec![0; HELLO_REPLY_SIZE];
    let (_, length) = net::recv(connection, reply.as_mut_slice(), RecvFlags::empty())?;
    reply.truncate(length);
    Ok(reply)
}

/// Returns the libraries to be preloaded: ours before others, and once, although a shell may have it already.
fn preload(library: &OsStr, others: &OsStr) -> OsString {
    let others = others.as_bytes().split(|byte| b": ".contains(byte));
    let others = others.filter(|other| !other.is_empty() && *other != library.as_bytes());
    let all: Vec<&[u8]> = [library.as_bytes()].into_iter().chain(others).collect();
    OsString::from_vec(all.join(&b':'))
}

/// Returns the options of AddressSanitizer with which it starts although it is not the first library.
fn asan_options(others: Option<OsString>) -> OsString {
    let mut options = others.unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push("verify_asan_link_order=0");
    options
}

/// Checks a name for the device of verbs. The adapters of umad, one for each of the nodes, have names already.
fn check_device_name(name: &str, nodes: &str) -> Result<(), ProgramError> {
    if sysfs::may_be_named(name, nodes.split(',').count()) {
        Ok(())
    } else {
        Err(ProgramError::DeviceName(name.to_owned()))
    }
}

/// What a program's environment has besides the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramEnvironment {
    variables: Vec<(&'static str, OsString)>,
}

impl ProgramEnvironment {
    /// With the service's socket and folder, the preload library, and the adapters that the program sees:
    /// descriptions or GUIDs with commas between them, or nothing for the management host's.
    ///
    /// # Errors
    /// [`ProgramError::Path`] for a socket that cannot be named from elsewhere.
    pub(crate) fn new(
        socket: &Path,
        library: &Path,
        node: Option<&str>,
    ) -> Result<Self, ProgramError> {
        let socket = std::path::absolute(socket)
            .map_err(|error| ProgramError::Path(socket.to_owned(), error))?;
        let others = env::var_os("LD_PRELOAD").unwrap_or_default();
        Ok(Self {
            variables: vec![
                ("LD_PRELOAD", preload(library.as_os_str(), &others)),
                ("VHCA_UMAD_SOCKET", socket.into()),
                ("VHCA_UMAD_NODE", node.unwrap_or_default().into()),
            ],
        })
    }

    /// Names the device of verbs, which otherwise is the next after the adapters of umad.
    ///
    /// # Errors
    /// [`ProgramError::DeviceName`].
    pub(crate) fn with_device(
        mut self,
        name: &str,
        node: Option<&str>,
    ) -> Result<Self, ProgramError> {
        check_device_name(name, node.unwrap_or_default())?;
        self.variables.push(("VHCA_UMAD_DEVICE", name.into()));
        Ok(self)
    }

    /// The variables with their values.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &OsStr)> {
        self.variables
            .iter()
            .map(|(name, value)| (*name, value.as_os_str()))
    }

    /// Adds the folder of files, for programs that make their own system calls.
    #[must_use]
    pub(crate) fn with_tree(mut self, tree: PathBuf) -> Self {
        self.variables.push(("VHCA_SYSFS", tree.into()));
        self
    }

    /// Returns the lines that a shell evaluates, with paths byte by byte as they are.
    #[must_use]
    pub(crate) fn shell_lines(&self) -> Vec<u8> {
        let line = |(name, value): (&str, &OsStr)| {
            let pieces: Vec<&[u8]> = value.as_bytes().split(|byte| *byte == b'\'').collect();
            let quoted = pieces.join(&br"'\''"[..]);
            [b"export ", name.as_bytes(), b"='", &quoted, b"'\n"].concat()
        };
        self.iter().flat_map(line).collect()
    }

    /// Becomes a program. Returns only if that fails. `say` gets a line if the program cannot see the VF.
    #[must_use]
    pub(crate) fn run(
        &self,
        program: &OsStr,
        arguments: &[OsString],
        say: &mut dyn FnMut(&str),
    ) -> ProgramError {
        let file = ProgramFile::look(program, env::var_os("PATH").as_deref());
        let is_quiet = env::var_os("VHCA_QUIET").is_some_and(|value| value == "1");
        if let Some(blind) = file.blind.filter(|_| !is_quiet) {
            let (name, reason) = (program.display(), blind.reason());
            say(&format!(
                "{name} {reason}: it will see neither the VF nor the ports of the service"
            ));
        }
        let mut command = Command::new(program);
        // With the library it would not start.
        let takes_library = file.blind != Some(Blind::Musl);
        let variables = self.iter();
        let variables = variables.filter(|(name, _)| takes_library || *name != "LD_PRELOAD");
        command.args(arguments).envs(variables);
        if file.needs_asan {
            command.env("ASAN_OPTIONS", asan_options(env::var_os("ASAN_OPTIONS")));
        }
        ProgramError::of_start(program, command.exec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_umad_socket_is_beside_the_control_socket() {
        assert_eq!(
            umad_socket_of(Path::new("/run/vhca/control.sock")),
            Path::new("/run/vhca/control.umad")
        );
    }

    #[test]
    fn shell_lines_quote_what_a_shell_would_take_apart() {
        let socket = Path::new(OsStr::from_bytes(b"/run/a b/x'y\xff.umad"));
        let environment = ProgramEnvironment::new(socket, Path::new("/lib/l.so"), None).unwrap();
        let lines = environment.with_tree("/run/tree".into()).shell_lines();
        let has = |wanted: &[u8]| lines.windows(wanted.len()).any(|found| found == wanted);
        assert!(has(
            b"export VHCA_UMAD_SOCKET='/run/a b/x'\\''y\xff.umad'\n"
        ));
        assert!(has(b"export VHCA_UMAD_NODE=''\n"));
        assert!(has(b"export VHCA_SYSFS='/run/tree'\n"));
        assert!(has(b"export LD_PRELOAD='/lib/l.so"));
    }

    #[test]
    fn a_shell_that_has_the_library_already_gets_it_once() {
        for (others, all) in [
            ("", "/l.so"),
            ("/l.so", "/l.so"),
            ("/m.so", "/l.so:/m.so"),
            ("/m.so /l.so:/n.so", "/l.so:/m.so:/n.so"),
        ] {
            assert_eq!(preload("/l.so".as_ref(), others.as_ref()), all);
        }
    }

    #[test]
    fn a_device_has_a_name_that_no_adapter_of_umad_has() {
        for (name, nodes) in [
            ("mlx5_0", ""),
            ("vhca2", "H1-1,H1-2"),
            ("vhca1", ""),
            ("vhca", ""),
        ] {
            assert!(check_device_name(name, nodes).is_ok(), "{name}");
        }
        let long = "a".repeat(64);
        for (name, nodes) in [
            ("", ""),
            ("..", ""),
            ("a/b", ""),
            ("a b", ""),
            (&long, ""),
            ("vhca0", ""),
            ("vhca1", "H1-1,H1-2"),
        ] {
            assert!(check_device_name(name, nodes).is_err(), "{name}");
        }
    }

    #[test]
    fn options_of_address_sanitizer_keep_those_of_the_user() {
        let wanted = "verify_asan_link_order=0";
        assert_eq!(asan_options(None), wanted);
        assert_eq!(asan_options(Some(OsString::new())), wanted);
        let both = asan_options(Some("detect_leaks=0".into()));
        assert_eq!(both, "detect_leaks=0:verify_asan_link_order=0");
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error() {
        let named = Path::new("/nonexistent/l.so");
        assert!(matches!(
            find_library(Some(named)),
            Err(ProgramError::Path(path, _)) if path == named
        ));
    }

    #[test]
    fn a_folder_that_cannot_be_read_does_not_hide_that_a_program_is_missing() {
        let said = |program: &str| {
            let denied = io::Error::from(io::ErrorKind::PermissionDenied);
            ProgramError::of_start(program.as_ref(), denied)
        };
        assert!(matches!(
            said("ibv_nothing"),
            ProgramError::NotInstalled(_, "ibverbs-utils")
        ));
        let kind = |error| match error {
            ProgramError::Start(_, source) => source.kind(),
            error => panic!("{error}"),
        };
        assert_eq!(kind(said("nothing-at-all")), io::ErrorKind::NotFound);
        // Every machine has this one, and a path is not looked for elsewhere.
        for program in ["sh", "/nonexistent/ibv_nothing"] {
            assert_eq!(kind(said(program)), io::ErrorKind::PermissionDenied);
        }
    }
}
