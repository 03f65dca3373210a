//! Which paths are ours, and where they lead: links and `..` are followed as the kernel follows them, with the service's tree in
//! the place of the kernel's folders.

use std::collections::VecDeque;

use rustix::io::Errno;

/// Folders and links that are the tree's, with all below them.
const OURS: [&[&str]; 7] = [
    &["sys", "class", "infiniband"],
    &["sys", "class", "infiniband_mad"],
    &["sys", "class", "infiniband_verbs"],
    &["sys", "class", "misc", "rdma_cm"],
    &["sys", "devices", "pci7ca0:00"],
    &["sys", "devices", "virtual", "misc", "rdma_cm"],
    &["dev", "infiniband"],
];

/// Links that the kernel follows in one path.
const MAX_LINKS: u32 = 40;

/// Parts of a path that may lead to us from another folder.
const SIGNS: [&str; 6] = ["infiniband", "pci7ca0", "rdma_cm", "uverbs", "umad", "issm"];

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A place in the tree, by its path below the root and without links on the way.
    Tree(String),
    /// A place of the host, by its absolute path, that is reached through ours.
    Host(Vec<u8>),
}

/// A device of `/dev/infiniband`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceFile {
    /// `umadN`.
    Umad(u32),
    /// `issmN`.
    IsSm(u32),
    /// `uverbsN`.
    Uverbs(u32),
    /// `rdma_cm`.
    RdmaCm,
}

impl DeviceFile {
    /// Returns the device at a path below the root, if it has the name of one.
    pub(crate) fn at(path: &str) -> Option<Self> {
        let name = path.strip_prefix("dev/infiniband/")?;
        let number = |kind| {
            name.strip_prefix(kind)
                .and_then(|number| number.parse().ok())
        };
        match name {
            "rdma_cm" => Some(Self::RdmaCm),
            _ => number("umad")
                .map(Self::Umad)
                .or_else(|| number("issm").map(Self::IsSm))
                .or_else(|| number("uverbs").map(Self::Uverbs)),
        }
    }
}

/// Returns `true` for a path that may be one of ours, whatever folder it is relative to.
pub(crate) fn may_be_ours(path: &[u8]) -> bool {
    let has = |sign: &&str| {
        let mut windows = path.windows(sign.len());
        windows.any(|window| window == sign.as_bytes())
    };
    match path {
        [b'/', rest @ ..] => {
            let rest = rest.trim_ascii_start();
            (rest.starts_with(b"sys") || rest.starts_with(b"dev") || rest.starts_with(b"/"))
                && SIGNS.iter().any(has)
        }
        _ => path.starts_with(b"..") || SIGNS.iter().any(has),
    }
}

/// Returns `true` if each part is the other's, as far as both go.
fn agrees(parts: &[String], ours: &[&str]) -> bool {
    parts.iter().zip(ours).all(|(part, our)| part == our)
}

fn is_ours(parts: &[String]) -> bool {
    let mut all = OURS.iter();
    all.any(|ours| parts.len() >= ours.len() && agrees(parts, ours))
}

/// Returns `true` for a folder of the host on the way to ours: none of them is a link.
fn is_on_the_way(parts: &[String]) -> bool {
    let mut all = OURS.iter();
    all.any(|ours| parts.len() < ours.len() && agrees(parts, ours))
}

/// Returns where a path leads from an absolute folder. `None` if it has nothing to do with us. The last part is followed if
/// `follows` says so. `link` returns the target of a link of the tree by its path below the root.
pub(crate) fn resolve(
    folder: &[u8],
    path: &[u8],
    follows: bool,
    link: impl Fn(&str) -> Option<String>,
) -> Result<Option<Place>, Errno> {
    let Ok(path) = core::str::from_utf8(path) else {
        return Ok(None);
    };
    let mut at: Vec<String> = Vec::new();
    if !path.starts_with('/') {
        let Ok(folder) = core::str::from_utf8(folder) else {
            return Ok(None);
        };
        at.extend(parts(folder).map(str::to_owned));
    }
    let follows = follows || path.ends_with('/');
    let mut left: VecDeque<String> = parts(path).map(str::to_owned).collect();
    let mut was_ours = is_ours(&at);
    let mut links = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(part);
        if is_ours(&at) {
            was_ours = true;
            if left.is_empty() && !follows {
                break;
            }
            if let Some(target) = link(&at.join("/")) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                // Anew from the root, since the target may be a link, or lead through one.
                for part in followed(&at, &target)
                    .ok_or(Errno::NOENT)?
                    .into_iter()
                    .rev()
                {
                    left.push_front(part);
                }
                at.clear();
            }
        } else if !is_on_the_way(&at) {
            at.extend(left);
            break;
        }
    }
    if is_ours(&at) {
        return Ok(Some(Place::Tree(at.join("/"))));
    }
    let host = format!("/{}", at.join("/"));
    Ok(was_ours.then(|| Place::Host(host.into_bytes())))
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !matches!(*part, "" | "."))
}

/// Returns where a link leads. `None` if that is outside of the tree: the service makes none such.
fn followed(link: &[String], target: &str) -> Option<Vec<String>> {
    let (_, folder) = link.split_last()?;
    let mut at = match target.starts_with('/') {
        true => Vec::new(),
        false => folder.to_vec(),
    };
    for part in parts(target) {
        match part {
            ".." => drop(at.pop()),
            part => at.push(part.to_owned()),
        }
    }
    is_ours(&at).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VF: &str = "sys/devices/pci7ca0:00/7ca0:00:00.1";

    fn link(path: &str) -> Option<String> {
        let target = match path {
            "sys/class/infiniband/vhca1" => {
                "../../devices/pci7ca0:00/7ca0:00:00.1/infiniband/vhca1"
            }
            "sys/devices/pci7ca0:00/7ca0:00:00.1/infiniband/vhca1/device" => {
                "../../../7ca0:00:00.1"
            }
            "sys/class/infiniband/away" => "../../../etc",
            "sys/class/infiniband/round" => "round",
            _ => return None,
        };
        Some(target.to_owned())
    }

    fn at(folder: &str, path: &str, follows: bool) -> Result<Option<Place>, Errno> {
        resolve(folder.as_bytes(), path.as_bytes(), follows, link)
    }

    fn tree(path: &str) -> Result<Option<Place>, Errno> {
        Ok(Some(Place::Tree(path.to_owned())))
    }

    fn host(path: &str) -> Result<Option<Place>, Errno> {
        Ok(Some(Place::Host(path.as_bytes().to_vec())))
    }

    #[test]
    fn links_and_parents_are_followed_as_the_kernel_follows_them() {
        let device = format!("{VF}/infiniband/vhca1");
        for (path, expected) in [
            ("/sys/class/infiniband", tree("sys/class/infiniband")),
            ("/sys//class/./infiniband/", tree("sys/class/infiniband")),
            ("/sys/class/infiniband/vhca1", tree(&device)),
            ("/sys/class/infiniband/vhca1/../..", tree(VF)),
            (
                "/sys/class/infiniband/vhca1/device/numa_node",
                tree(&format!("{VF}/numa_node")),
            ),
            (
                "/sys/class/infiniband/../net/eth0",
                host("/sys/class/net/eth0"),
            ),
            (
                "/sys/class/infiniband/../infiniband/vhca1/ports",
                tree(&format!("{device}/ports")),
            ),
            (
                "/sys/class/infiniband/vhca1/../../../..",
                host("/sys/devices"),
            ),
            ("/dev/infiniband/uverbs0", tree("dev/infiniband/uverbs0")),
            ("/sys/class/infiniband/away", Err(Errno::NOENT)),
            ("/sys/class/infiniband/round", Err(Errno::LOOP)),
            ("/sys/class/net/eth0", Ok(None)),
            ("/sys/class", Ok(None)),
            ("/dev/null", Ok(None)),
            ("/", Ok(None)),
        ] {
            assert_eq!(at("", path, true), expected, "{path}");
        }
        let unfollowed = at("", "/sys/class/infiniband/vhca1", false);
        assert_eq!(unfollowed, tree("sys/class/infiniband/vhca1"));
        let with_slash = at("", "/sys/class/infiniband/vhca1/", false);
        assert_eq!(with_slash, tree(&device));
    }

    #[test]
    fn relative_paths_begin_at_their_folder() {
        for (folder, path, expected) in [
            ("/", "sys/class/infiniband", tree("sys/class/infiniband")),
            ("/sys/class", "infiniband", tree("sys/class/infiniband")),
            ("/sys/class/infiniband", "../net", host("/sys/class/net")),
            (
                &format!("/{VF}/infiniband/vhca1"),
                "../../class",
                tree(&format!("{VF}/class")),
            ),
            ("/home", "infiniband", Ok(None)),
            ("/sys/class/infiniband", "/etc/passwd", Ok(None)),
        ] {
            assert_eq!(at(folder, path, true), expected, "{path} in {folder}");
        }
    }

    #[test]
    fn most_paths_are_known_to_be_others_by_their_text() {
        for path in [
            "/usr/lib/infiniband",
            "/etc/passwd",
            "lid",
            "/sys/class/net",
            "",
        ] {
            assert!(!may_be_ours(path.as_bytes()), "{path}");
        }
        for path in [
            "/sys/class/infiniband",
            "//sys/class/infiniband",
            "../x",
            "infiniband/vhca0",
        ] {
            assert!(may_be_ours(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn device_files_have_their_names() {
        for (name, device) in [
            ("umad3", Some(DeviceFile::Umad(3))),
            ("issm0", Some(DeviceFile::IsSm(0))),
            ("uverbs0", Some(DeviceFile::Uverbs(0))),
            ("rdma_cm", Some(DeviceFile::RdmaCm)),
            ("umad", None),
            ("umad-1", None),
            ("", None),
        ] {
            assert_eq!(
                DeviceFile::at(&format!("dev/infiniband/{name}")),
                device,
                "{name}"
            );
        }
        assert_eq!(DeviceFile::at("sys/class/infiniband_mad/umad0"), None);
    }
}
