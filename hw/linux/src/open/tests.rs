use super::*;
use crate::error::OpenError as E;

/// A root with a device `mlx4_0`: port 1 is InfiniBand and has umad, port 2 is of another kind, port 3 has no umad.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let class = root.path().join("sys/class");
    let write = |path: &str, text: &str| {
        let path = class.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for (port, link_layer) in [
        (1, "InfiniBand\n"),
        (2, "Unspecified\n"),
        (3, "InfiniBand\n"),
    ] {
        write(
            &format!("infiniband/mlx4_0/ports/{port}/link_layer"),
            link_layer,
        );
    }
    write("infiniband_mad/abi_version", "5\n");
    for (name, port) in [("issm0", "1\n"), ("umad0", "2\n"), ("umad1", "1\n")] {
        write(&format!("infiniband_mad/{name}/ibdev"), "mlx4_0\n");
        write(&format!("infiniband_mad/{name}/port"), port);
    }
    root
}

#[test]
fn a_port_is_found_with_its_umad_file() {
    let root = root();
    let found = Found::new(root.path(), "mlx4_0", 1).unwrap();
    let umad = root.path().join("dev/infiniband/umad1");
    assert_eq!(found.umad(root.path()), umad);
    assert!(found.port.join("link_layer").exists());
}

/// Each message is one line, and says what to do.
#[test]
fn what_is_in_the_way_is_named_with_the_next_step() {
    let root = root();
    let refusal = |device, port| Found::new(root.path(), device, port).unwrap_err();
    let none = tempfile::tempdir().unwrap();
    let denied = io::Error::from_raw_os_error(libc::EACCES);
    let too_many = io::Error::from_raw_os_error(libc::EMFILE);
    let other = io::Error::from_raw_os_error(libc::EIO);
    let name = || "mlx4_0/1".to_owned();
    for (error, part) in [
        (
            Found::new(none.path(), "mlx4_0", 1).unwrap_err(),
            "no RDMA device mlx4_0 here: no driver has one (rdma link",
        ),
        (
            refusal("mlx5_0", 1),
            "no RDMA device mlx5_0 here: the devices are mlx4_0",
        ),
        (refusal("mlx4_0", 4), "mlx4_0 has no port 4: rdma link"),
        (
            refusal("mlx4_0", 2),
            "port 2 of mlx4_0 is Unspecified: choose a port of InfiniBand or Ethernet",
        ),
        (
            refusal("mlx4_0", 3),
            "has no umad file: as root, modprobe ib_umad",
        ),
        (
            super::refusal("/dev/infiniband/umad0", denied),
            "run this as root",
        ),
        (
            super::refusal("/dev/infiniband/umad0", too_many),
            "ulimit -n",
        ),
        (
            super::refusal("/dev/infiniband/umad0", other),
            "cannot be opened",
        ),
        (
            E::CmTaken(name()),
            "modprobe -r ib_ipoib rdma_ucm rdma_cm ib_cm; or serve without CM",
        ),
        (
            E::ReportTaken {
                device: name(),
                umad: "/dev/infiniband/umad0".to_owned(),
            },
            "fuser -v /dev/infiniband/umad0 names it",
        ),
        (E::Unreadable(name()), "dmesg"),
    ] {
        let message = error.to_string();
        assert!(message.contains(part), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn receivers_name_their_methods_by_bits() {
    let request = receiver(MgmtClass::COM_MGT, &[Method::GET, Method::SEND]);
    assert_eq!(request.method_mask.map(|bits| bits.get()), [0b1010, 0]);
    assert_eq!((request.mgmt_class, request.mgmt_class_version), (7, 2));
}
