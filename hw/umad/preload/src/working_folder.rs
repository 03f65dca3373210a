//! Relative paths: a program whose working folder is one of ours is in the service's tree of empty files.

use crate::paths::Place;

/// Returns the place that a relative path names, given the working folder and the root of the program's tree.
/// `root` is asked for only if the working folder can be in a tree.
pub(crate) fn place(
    path: &[u8],
    working_folder: &[u8],
    root: impl FnOnce() -> Option<Vec<u8>>,
) -> Option<Place> {
    let folders = [&b"/sys/class/infiniband"[..], b"/dev/infiniband"];
    let has = |folder: &&[u8]| {
        let mut windows = working_folder.windows(folder.len());
        windows.any(|window| window == *folder)
    };
    if path.is_empty() || path.starts_with(b"/") || !folders.iter().any(has) {
        return None;
    }
    let inside = working_folder.strip_prefix(root()?.as_slice())?;
    Place::of(&[inside, b"/", path].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_ours_if_the_working_folder_is_in_the_tree() {
        let root = || Some(b"/run/vhca/umad.sys/1".to_vec());
        let lid = Some(Place::Sysfs("infiniband/vhca0/ports/1/lid".to_owned()));
        let tree = "/run/vhca/umad.sys/1";
        for (folder, path, expected) in [
            ("/sys/class/infiniband", "vhca0/ports/1/lid", lid.clone()),
            ("/sys/class/infiniband/vhca0/ports/1", "./lid", lid),
            ("/dev/infiniband", "umad0", Some(Place::Umad(0))),
            ("/dev/infiniband", "/etc/passwd", None),
            ("/sys/class/infiniband", "", None),
            ("/sys/class/infiniband", "../net", None),
            ("", "sys/class/infiniband", None),
        ] {
            let folder = format!("{tree}{folder}");
            let found = place(path.as_bytes(), folder.as_bytes(), root);
            assert_eq!(found, expected, "{path} in {folder}");
        }
        let elsewhere = place(b"vhca0/node_guid", b"/sys/class/infiniband", root);
        assert_eq!(elsewhere, None, "the kernel's own folder");
    }
}
