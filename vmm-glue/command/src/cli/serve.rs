//! Arguments of the service.

use std::path::PathBuf;

use crate::programs::umad_socket_of;
use clap::Args;
use ib_wire::Lmc;
use vhca_control::{Right, default_path};
use vhca_service::serve::{
    AccessRule, AttachSpec, GivenOptions, GuidPolicy, Options, PartEnforce, PolicyOptions, Quotas,
    SmChoice, TopologySpec, VerbsNetwork, parse_lmc,
};

use super::number::number;
use super::words::{DIRECTIONS, GUIDS, MANAGERS, RIGHTS, words};

/// The control socket of a service that is started.
#[derive(Debug, Args)]
pub(super) struct OwnSocketArgs {
    /// The control socket; by default $XDG_RUNTIME_DIR/vhca/control.sock, or /tmp/vhca-UID/control.sock.
    #[arg(long, value_name = "PATH", env = "VHCA_CONTROL")]
    control: Option<PathBuf>,
}

impl OwnSocketArgs {
    /// Returns the path of the socket.
    pub(super) fn path(&self) -> anyhow::Result<PathBuf> {
        match &self.control {
            Some(path) => Ok(path.clone()),
            None => Ok(default_path()?),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Take options from this TOML file; flags come first. docs/serve.md has an example.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The fabric: single, two-switch, three-switch, fat-tree:K:HOSTS, or a file by a path with a slash
    /// or a dot: an ibsim net file, or what ibnetdiscover prints. [default: two-switch]
    #[arg(long)]
    topology: Option<TopologySpec>,
    /// The subnet manager: lite runs the embedded one on the manager, none waits for one on a socket. [default: lite]
    #[arg(long, value_parser = words::<SmChoice>(MANAGERS))]
    sm: Option<SmChoice>,
    /// The host on which vhca's own subnet manager runs, whose adapter is not shared. By default that of
    /// the first adapter called mgmt or mgmt-..., or else of the first one.
    #[arg(long, value_name = "NODE")]
    manager: Option<String>,
    /// Give each port of a host 2^LMC LIDs. [default: 0]
    #[arg(long, value_parser = parse_lmc)]
    lmc: Option<Lmc>,
    /// Have the switches in front of hosts drop packets of partitions that the host is not in: those to hosts (out), from
    /// hosts (in), or both. [default: off]
    #[arg(long, value_parser = words::<PartEnforce>(DIRECTIONS))]
    part_enforce: Option<PartEnforce>,
    /// The adapters that are shared among VFs; can be given more than once. By default all but the
    /// manager's and those called mgmt or mgmt-....
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pf: Vec<String>,
    /// VFs of each shared adapter, 254 at most; 0 for none at all. [default: 4]
    #[arg(long, value_parser = number::<u16>(0..=254))]
    vfs: Option<u16>,
    /// Where the VFs' GUIDs come from. [default: sm]
    #[arg(long, value_parser = words::<GuidPolicy>(GUIDS))]
    guids: Option<GuidPolicy>,
    /// What every VF may do beyond the ordinary; `vhca set vf` changes it.
    #[arg(long, value_name = "RIGHT", value_parser = words::<Right>(RIGHTS), value_delimiter = ',')]
    rights: Vec<Right>,
    /// Run a guest's software on every VF.
    #[arg(long)]
    guests: bool,
    /// Offer each VF to a VMM by a vfio-user socket in this folder, which is made if there is none:
    /// DIR/HOST-vfN.sock. `vhca qemu-args` prints QEMU's arguments for them.
    #[arg(long, value_name = "DIR")]
    vfio_user: Option<PathBuf>,
    /// Let each VF touch so many MiB of its guest's memory at most: what the service may be charged for a VMM. As much
    /// as the guest has is enough. [default: half of the memory that the service may have, shared among the VFs]
    #[arg(long, value_name = "MIB", value_parser = number::<u64>(1..=u64::MAX))]
    guest_memory: Option<u64>,
    /// Let the service spend so many MiB on each program of --verbs at most: on the rings of its queues, objects and events
    /// that it does not read. [default: 64, within the memory that VFs share]
    #[arg(long, value_name = "MIB", value_parser = number::<u64>(1..=u64::MAX))]
    program_memory: Option<u64>,
    /// Instead of a fabric, PF hosts at nodes of an ibsim: ibsim:SOCKNAME/NODE[,NODE...] with its
    /// IBSIM_SOCKNAME, or ibsim:udp:PORT/NODE[,NODE...]. Can be given more than once.
    #[arg(long, value_name = "WHERE")]
    attach: Vec<AttachSpec>,
    /// Write the GUIDs that the SA of an attached fabric grants to the VFs' ports, since the stock
    /// ibsim refuses the subnet manager's attempt.
    #[arg(long)]
    local_guids: bool,
    /// Seed of everything random, keys, PSNs and ids included, for tests: they can be computed from it. By default they
    /// follow from 256 random bits.
    #[arg(long, value_parser = number::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Let programs that preload libumad2sim attach to any port, by the abstract Unix sockets that
    /// IBSIM_SOCKNAME of the programs names.
    #[arg(long, value_name = "NAME")]
    ibsim: Vec<String>,
    /// The same by UDP on 127.0.0.1, for programs with IBSIM_SERVER_NAME=127.0.0.1 and this
    /// IBSIM_SERVER_PORT. The ports behind it are used, too, one for each client.
    #[arg(long, value_name = "PORT", value_parser = number::<u16>(1..=65534))]
    ibsim_udp: Vec<u16>,
    /// Let the programs of this user, by name or number, attach by --ibsim, too. Can be given more than once.
    /// [default: root and the user of the service]
    #[arg(long, value_name = "USER")]
    ibsim_user: Vec<String>,
    /// Set who may connect to a socket: control, umad, verbs, all (of the VFs), HOST/all or HOST/N, as
    /// OWNER:GROUP:MODE, of which parts can be empty. Can be given more than once. [default: the user of the
    /// service, 0600; with a group 0660]
    #[arg(long, value_name = "SOCKET=OWNER:GROUP:MODE")]
    access: Vec<AccessRule>,
    #[command(flatten)]
    own: OwnSocketArgs,
    /// The socket for programs that use Linux' umad (see `vhca run`); by default beside the control
    /// socket, under its name with the ending `umad`.
    #[arg(long, value_name = "PATH")]
    umad: Option<PathBuf>,
    /// Let programs on libibverbs have VFs (see `vhca run`), each process one, by a socket beside that for umad. A program
    /// lends the service all of its memory.
    #[arg(long)]
    verbs: bool,
    /// With --verbs and --vfio-user: how many VFs of each adapter, its last ones, are for programs. Programs and VMMs are
    /// of one user then, since a program can keep guests waiting.
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=65535))]
    program_vfs: Option<u16>,
    /// With --verbs: the IPv4 network of the VFs' addresses for the RDMA CM, of 65,536 addresses or more; VF V of the Hth
    /// host with VFs has H.V in its low bytes. Those in 127.0.0.0/8 are the host's own for TCP. [default: 127.77.0.0/16]
    #[arg(long, value_name = "ADDRESS/LENGTH")]
    verbs_network: Option<VerbsNetwork>,
    /// Do without the sandbox (seccomp and Landlock), for debugging.
    #[arg(long)]
    no_sandbox: bool,
    /// Print JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Log on stderr what the PFs drop, a few lines for each VF and reason. RUST_LOG chooses more
    /// finely.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

impl ServeArgs {
    /// What they and the file say.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let file = match &self.config {
            Some(path) => GivenOptions::read(path)?,
            None => GivenOptions::default(),
        };
        let mut options = self.given().or(file).with_defaults()?;
        let control = match options.control.take() {
            Some(path) => path,
            None => self.own.path()?,
        };
        let umad = || umad_socket_of(&control);
        options.umad = Some(options.umad.take().unwrap_or_else(umad));
        options.control = Some(control);
        options.sandbox = !self.no_sandbox;
        Ok(options)
    }

    fn given(&self) -> GivenOptions {
        GivenOptions {
            topology: self.topology.clone(),
            sm: self.sm,
            manager: self.manager.clone(),
            lmc: self.lmc,
            part_enforce: self.part_enforce,
            partition: Vec::new(),
            pf: self.pf.clone(),
            vfs: self.vfs,
            guids: self.guids,
            rights: self.rights.clone(),
            guests: self.guests.then_some(true),
            vfio_user: self.vfio_user.clone(),
            quotas: Quotas {
                guest_memory: self.guest_memory,
                program_memory: self.program_memory,
                ..Quotas::default()
            },
            policy: PolicyOptions::default(),
            sidr: Vec::new(),
            attach: self.attach.clone(),
            local_guids: self.local_guids.then_some(true),
            seed: self.seed,
            control: self.own.control.clone(),
            umad: self.umad.clone(),
            verbs: self.verbs.then_some(true),
            program_vfs: self.program_vfs,
            verbs_network: self.verbs_network,
            ibsim: self.ibsim.clone(),
            ibsim_udp: self.ibsim_udp.clone(),
            ibsim_users: self.ibsim_user.clone(),
            access: (self.access.iter().cloned())
                .map(|rule| (rule.name, rule.access))
                .collect(),
        }
    }
}
