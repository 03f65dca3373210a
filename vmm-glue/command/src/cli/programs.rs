//! Arguments of what runs programs on a service's ports.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::server::say;
use super::{ServerArgs, complete};
use crate::programs::{
    ProgramEnvironment, find_library, find_service, find_tree, umad_socket_of, wait_for_ports,
};

/// Time in which a subnet manager has to make a program's ports active: several times what it takes on a busy machine.
const PORT_LIMIT: Duration = Duration::from_secs(15);

/// Which service and which of its adapters.
#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    /// The adapters that the program sees, by description or GUID; by default that of the management
    /// host. For programs on libibverbs NODE/N names a VF, NODE its next free one; by default any.
    #[arg(long, value_name = "NODE", value_delimiter = ',', add = complete::node())]
    pub(crate) node: Vec<String>,
    /// The service's socket for programs; by default the one beside its control socket, or the one that the service names.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Name of the device of libibverbs, such as mlx5_0; by default vhcaN, after the adapters of umad.
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// The preload library libvhca_umad.so; by default the one beside this program.
    #[arg(long, value_name = "PATH", env = "VHCA_UMAD_PRELOAD")]
    pub(crate) preload: Option<PathBuf>,
}

impl EnvArgs {
    /// Finds the service. Returns its socket for programs.
    fn service(&self) -> anyhow::Result<PathBuf> {
        let mut places = self.server.places()?;
        let controls = match &self.socket {
            Some(socket) => {
                places.paths = vec![socket.clone()];
                Vec::new()
            }
            None => {
                let beside = |path: &PathBuf| umad_socket_of(path);
                let beside = places.paths.iter().map(beside).collect();
                core::mem::replace(&mut places.paths, beside)
            }
        };
        Ok(find_service(
            &places,
            &controls,
            self.nodes().as_deref(),
            &mut say,
        )?)
    }

    /// Returns the nodes with commas between them.
    fn nodes(&self) -> Option<String> {
        (!self.node.is_empty()).then(|| self.node.join(","))
    }

    /// Returns the environment of programs at a service.
    fn environment_at(&self, socket: &Path) -> anyhow::Result<ProgramEnvironment> {
        let (library, node) = (find_library(self.preload.as_deref())?, self.nodes());
        let environment = ProgramEnvironment::new(socket, &library, node.as_deref())?;
        Ok(match &self.device {
            Some(name) => environment.with_device(name, node.as_deref())?,
            None => environment,
        })
    }

    /// Finds the service and returns the environment of a shell whose programs run at it.
    pub(crate) fn environment(&self) -> anyhow::Result<ProgramEnvironment> {
        let socket = self.service()?;
        let environment = self.environment_at(&socket)?;
        let tree = find_tree(&socket, self.nodes().as_deref(), self.device.as_deref())?;
        Ok(environment.with_tree(tree))
    }
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    environment: EnvArgs,
    /// Start the program at once; by default it starts when its port and that of its VF are active, or after 15 s, where a
    /// subnet manager runs.
    #[arg(long)]
    no_wait: bool,
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub(crate) program: Vec<OsString>,
}

impl RunArgs {
    /// Finds the service and returns the environment of programs at it. Waits until the program's ports are active.
    pub(crate) fn environment(&self) -> anyhow::Result<ProgramEnvironment> {
        let socket = self.environment.service()?;
        let environment = self.environment.environment_at(&socket)?;
        if !self.no_wait {
            let node = self.environment.nodes();
            wait_for_ports(&socket, node.as_deref(), PORT_LIMIT, &mut say);
        }
        Ok(environment)
    }
}
