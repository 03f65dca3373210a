//! Which paths are ours.

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A file or folder of sysfs, by its path below `/sys/class`.
    Sysfs(String),
    /// `/dev/infiniband/umadN`.
    Umad(u32),
    /// `/dev/infiniband/issmN`.
    IsSm(u32),
    /// The folder `/dev/infiniband`.
    Devices,
    /// `/dev/infiniband/uverbsN`.
    Uverbs(u32),
    /// `/dev/infiniband/rdma_cm`.
    RdmaCm,
    /// A file of sysfs about verbs, by its path below `/sys/class`.
    VerbsSysfs(String),
}

impl Place {
    /// The place that a path names, if it is ours. Only absolute paths are, without `..`.
    pub(crate) fn of(path: &[u8]) -> Option<Self> {
        // Most paths of a program end here.
        if !path.starts_with(b"/sys/") && !path.starts_with(b"/dev/") {
            return None;
        }
        let path = core::str::from_utf8(path).ok()?;
        let parts: Vec<&str> = path
            .split('/')
            .filter(|part| !matches!(*part, "" | "."))
            .collect();
        if parts.contains(&"..") {
            return None;
        }
        match parts.as_slice() {
            ["sys", "class", "infiniband", name, ..] if *name == crate::verbs::device_name() => {
                Some(Self::VerbsSysfs(parts.get(2..)?.join("/")))
            }
            ["sys", "class", "infiniband_verbs", ..] | ["sys", "class", "misc", "rdma_cm", ..] => {
                Some(Self::VerbsSysfs(parts.get(2..)?.join("/")))
            }
            ["sys", "class", "infiniband" | "infiniband_mad", ..] => {
                Some(Self::Sysfs(parts.get(2..)?.join("/")))
            }
            ["dev", "infiniband"] => Some(Self::Devices),
            ["dev", "infiniband", "rdma_cm"] => Some(Self::RdmaCm),
            ["dev", "infiniband", device] => {
                if let Some(number) = device.strip_prefix("umad") {
                    number.parse().ok().map(Self::Umad)
                } else if let Some(number) = device.strip_prefix("uverbs") {
                    number.parse().ok().map(Self::Uverbs)
                } else {
                    let number = device.strip_prefix("issm")?;
                    number.parse().ok().map(Self::IsSm)
                }
            }
            _ => None,
        }
    }

    /// The path in the service's tree of empty files, below its root.
    pub(crate) fn in_tree(&self) -> String {
        match self {
            Self::Sysfs(path) => format!("sys/class/{path}"),
            Self::Umad(number) => format!("dev/infiniband/umad{number}"),
            Self::IsSm(number) => format!("dev/infiniband/issm{number}"),
            Self::Uverbs(number) => format!("dev/infiniband/uverbs{number}"),
            Self::RdmaCm => "dev/infiniband/rdma_cm".to_owned(),
            Self::VerbsSysfs(path) => format!("sys/class/{path}"),
            Self::Devices => "dev/infiniband".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_umad_and_of_its_part_of_sysfs_are_ours() {
        let sysfs = |path: &str| Some(Place::Sysfs(path.to_owned()));
        assert_eq!(Place::of(b"/sys/class/infiniband"), sysfs("infiniband"));
        assert_eq!(
            Place::of(b"/sys/class/infiniband_mad/umad0//ibdev"),
            sysfs("infiniband_mad/umad0/ibdev")
        );
        assert_eq!(
            Place::of(b"/sys/class/infiniband/vhca0/ports/1/lid"),
            sysfs("infiniband/vhca0/ports/1/lid")
        );
        assert_eq!(Place::of(b"/dev/infiniband/umad3"), Some(Place::Umad(3)));
        assert_eq!(Place::of(b"/dev/infiniband/issm0"), Some(Place::IsSm(0)));
        assert_eq!(Place::of(b"/dev/infiniband/"), Some(Place::Devices));
    }

    #[test]
    fn other_paths_are_not_ours() {
        for path in [
            "/sys/class/net",
            "/sys/class/infiniband/../net",
            "/dev/infiniband/umad",
            "/dev/infiniband/umad-1",
            "/dev/null",
            "sys/class/infiniband",
            "",
        ] {
            assert_eq!(Place::of(path.as_bytes()), None, "{path}");
        }
    }
}
