//! Arguments of the service.

use std::path::PathBuf;

use clap::Args;
use vf_tunnel::VfId;
use vhca::programs::umad_socket_of;
use vhca::serve::{AttachSpec, GuidPolicy, IbsimAddress, Options, SmChoice, TopologySpec};

use super::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The fabric: single, two-switch, three-switch, or fat-tree:K:HOSTS.
    #[arg(long, default_value_t, conflicts_with = "attach")]
    topology: TopologySpec,
    /// Who manages the subnet: vhca itself on the management host, or somebody who comes by a socket.
    #[arg(long, value_enum, default_value_t)]
    sm: SmChoice,
    /// The management host, whose adapter is not shared. By default the adapter called mgmt, or else
    /// the first one.
    #[arg(long, value_name = "NODE")]
    manager: Option<String>,
    /// The adapters that are shared among VFs; can be given more than once. By default all but that
    /// of the management host.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pf: Vec<String>,
    /// VFs of each shared adapter.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(0..=i64::from(VfId::MAX)))]
    vfs: u16,
    /// Where the VFs' GUIDs come from.
    #[arg(long, value_enum, default_value_t)]
    guids: GuidPolicy,
    /// Run a guest's software on every VF.
    #[arg(long)]
    guests: bool,
    /// Instead of a fabric, PF hosts at nodes of an ibsim: ibsim:SOCKNAME/NODE[,NODE...] with its
    /// IBSIM_SOCKNAME, or ibsim:udp:PORT/NODE[,NODE...]. Can be given more than once.
    #[arg(long, value_name = "WHERE")]
    attach: Vec<AttachSpec>,
    /// Write the GUIDs that the SA of an attached fabric grants to the VFs' ports, since the stock
    /// ibsim refuses the subnet manager's attempt.
    #[arg(long, requires = "attach")]
    local_guids: bool,
    /// Seed of everything random; random itself by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Let programs that preload libumad2sim attach to any port, by the abstract Unix sockets that
    /// IBSIM_SOCKNAME of the programs names.
    #[arg(long, value_name = "NAME")]
    ibsim: Vec<String>,
    /// The same by UDP on 127.0.0.1, for programs with IBSIM_SERVER_NAME=127.0.0.1 and this
    /// IBSIM_SERVER_PORT. The ports behind it are used, too, one for each client.
    #[arg(long, value_name = "PORT")]
    ibsim_udp: Vec<u16>,
    #[command(flatten)]
    server: ServerArgs,
    /// The socket for programs that use Linux' umad (see `vhca run`); by default beside the control
    /// socket, under its name with the ending `umad`.
    #[arg(long, value_name = "PATH")]
    umad: Option<PathBuf>,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Log on stderr what the PFs drop, a few lines for each VF and reason. RUST_LOG chooses more
    /// finely.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

impl ServeArgs {
    /// What they say.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let control = self.server.control()?;
        let umad = match &self.umad {
            Some(path) => path.clone(),
            None => umad_socket_of(&control),
        };
        Ok(Options {
            topology: self.topology.clone(),
            sm: self.sm,
            manager: self.manager.clone(),
            pf: self.pf.clone(),
            vfs: self.vfs,
            guids: self.guids,
            guests: self.guests,
            attach: self.attach.clone(),
            local_guids: self.local_guids,
            seed: self.seed,
            umad: Some(umad),
            control: Some(control),
            ibsim: self.ibsim(),
        })
    }

    fn ibsim(&self) -> Vec<IbsimAddress> {
        let names = self.ibsim.iter().cloned().map(IbsimAddress::Unix);
        let ports = self.ibsim_udp.iter().copied().map(IbsimAddress::Udp);
        names.chain(ports).collect()
    }
}
