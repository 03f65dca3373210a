//! A served fabric with a subnet manager, whose VFs wait for guests.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;
use vhca_tests::live::{Lab, OpenSm, PATIENCE, Shim};

use crate::guest::{Boot, Guest};

/// Who manages the subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manager {
    /// The one of `vhca serve`.
    Lite,
    /// A stock OpenSM.
    OpenSm,
    /// The one of another service.
    Neighbour,
}

/// A service with vfio-user sockets, and its subnet manager.
#[derive(Debug)]
pub(crate) struct Fabric {
    _sm: Option<OpenSm>,
    pub(crate) lab: Lab,
    sockets: TempDir,
    /// What the service was started with.
    arguments: Vec<String>,
}

impl Fabric {
    /// Serves with these arguments. OpenSM runs on the adapter `mgmt`.
    pub(crate) fn new(manager: Manager, arguments: &[&str]) -> Self {
        Self::managed_from("mgmt", manager, arguments)
    }

    /// Serves with these arguments. OpenSM runs on an adapter of the caller's choice.
    pub(crate) fn managed_from(node: &str, manager: Manager, arguments: &[&str]) -> Self {
        Self::configured(node, manager, arguments, "")
    }

    /// Serves with these arguments. OpenSM has these lines in its configuration.
    pub(crate) fn configured(
        node: &str,
        manager: Manager,
        arguments: &[&str],
        opensm: &str,
    ) -> Self {
        let sockets = tempfile::Builder::new()
            .prefix("vhca-vfs")
            .tempdir()
            .unwrap();
        let folder = sockets
            .path()
            .to_str()
            .expect("a temporary folder in UTF-8");
        let sm = match manager {
            Manager::Lite => "lite",
            Manager::OpenSm | Manager::Neighbour => "none",
        };
        let ours = ["--vfio-user", folder, "--sm", sm];
        let arguments = [&ours, arguments].concat();
        let lab = Lab::serve(&arguments);
        let sm =
            (manager == Manager::OpenSm).then(|| OpenSm::start(&lab, Shim::Vhca, node, opensm));
        Self {
            _sm: sm,
            lab,
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            sockets,
        }
    }

    /// Serves again, with the same sockets, after the service has died.
    pub(crate) fn restart(&mut self) {
        self.lab.service().wait(PATIENCE);
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        self.lab = Lab::serve(&arguments);
    }

    /// The socket of a VF.
    pub(crate) fn device(&self, host: &str, vf: u16) -> PathBuf {
        self.sockets.path().join(format!("{host}-vf{vf}.sock"))
    }

    /// Where files of guests go.
    pub(crate) fn dir(&self) -> &Path {
        self.sockets.path()
    }

    /// Boots a guest on a VF, and waits for its port.
    pub(crate) fn booted(&self, kernel: &'static str, host: &str, vf: u16) -> Guest {
        let boot = Boot::new(kernel, self.device(host, vf));
        let mut guest = boot.start(self.dir(), &format!("{host}-{vf}"));
        guest.wait_for_port();
        guest
    }

    /// Continues a saved guest on a VF, and waits for its port.
    pub(crate) fn guest(&self, kernel: &'static str, host: &str, vf: u16) -> Guest {
        let boot = Boot::new(kernel, self.device(host, vf));
        let mut guest = boot.wake(self.dir(), &format!("{host}-{vf}"));
        guest.wait_for_port();
        guest
    }

    /// Continues saved guests on VFs, all at once, and waits for their ports.
    pub(crate) fn guests<const N: usize>(
        &self,
        kernel: &'static str,
        vfs: [(&str, u16); N],
    ) -> [Guest; N] {
        std::thread::scope(|scope| {
            let boots = vfs.map(|(host, vf)| scope.spawn(move || self.guest(kernel, host, vf)));
            boots.map(|boot| {
                boot.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }

    /// What is shown of the VMM at a VF.
    pub(crate) fn vmm(&self, host: &str, vf: u16) -> Value {
        let told = self.lab.json(&["show", "vfs", "--host", host]);
        let mut vmms = told["vmms"].as_array().expect("a table").iter();
        let vmm = vmms.find(|vmm| vmm["vf"] == vf);
        vmm.expect("a VF that is offered").clone()
    }

    /// The rows of a table of the service that are of a host.
    pub(crate) fn rows(&self, table: &str, host: &str) -> Vec<Value> {
        let told = self.lab.json(&["show", table, "--host", host]);
        told[table].as_array().expect("a table").clone()
    }
}
