//! Arguments of the service.

use std::path::PathBuf;

use clap::Args;
use ib_trunk::SiteName;
use ib_wire::Lmc;
use vhca_control::{Right, default_path};
use vhca_service::serve::TrunkSpec;
use vhca_service::serve::{
    AccessRule, AttachSpec, GivenOptions, GuidPolicy, Options, PartEnforce, SmChoice, TopologySpec,
    VerbsNetwork, parse_lmc,
};

use super::number::number;
use super::words::{DIRECTIONS, GUIDS, MANAGERS, RIGHTS, words};
use crate::programs::umad_socket_of;

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
    /// Run nothing of vhca's on these hosts, as on stock ones: they have no VFs, and programs of `vhca run` can register all
    /// classes of MADs there, Send of the CM included. Can be given more than once.
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    bare: Vec<String>,
    /// Join this fabric to another service's by a cable between ports: PORT=ADDRESS, or NODE=ADDRESS for its first free
    /// port, connects to a service that listens, as in S1/8=tls:spine:18600, and PORT=listen:ADDRESS listens, as in
    /// S1/8=listen:tls:[::]:18600; tcp:HOST:PORT does without TLS, and unix:PATH and vhost:PATH, which has shared memory, stay within the
    /// machine. With ,peer=host behind the address the other end is not trusted: it speaks for its own LIDs alone, and manages no subnet; with
    /// ,peer=fabric it is trusted as a switch is. [default: host at an end that listens without TLS, else fabric] Can be
    /// given more than once.
    #[arg(long, value_name = "PORT=ADDRESS")]
    trunk: Vec<TrunkSpec>,
    /// The private key of this end of trunks with tls: addresses, as `vhca trunk keygen` makes it, or that of
    /// --trunk-certificate.
    #[arg(long, value_name = "FILE")]
    trunk_key: Option<PathBuf>,
    /// The public keys of the other ends, one a line.
    #[arg(long, value_name = "FILE")]
    trunk_peers: Option<PathBuf>,
    /// Instead of a list of keys: the certificate of --trunk-key, with its chain, in PEM.
    #[arg(long, value_name = "FILE")]
    trunk_certificate: Option<PathBuf>,
    /// The CAs that issue the certificates of the other ends, in PEM.
    #[arg(long, value_name = "FILE")]
    trunk_ca: Option<PathBuf>,
    /// Name of this service among services that trunks join, each of which has GUIDs of its own by it. [default: with
    /// --trunk the environment variable NODE_NAME, or else the name of the machine]
    #[arg(long, value_name = "NAME")]
    site: Option<SiteName>,
    /// The adapters that are shared among VFs; can be given more than once. By default all but the
    /// manager's, those called mgmt or mgmt-..., and the bare ones.
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
    /// IBSIM_SOCKNAME, or ibsim:udp:PORT/NODE[,NODE...], which can be given more than once; or a PF in front of a port of an HCA
    /// that the kernel drives: linux:DEVICE/PORT, or linux:DEVICE/PORT,no-cm to leave the CM to the kernel.
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
    /// host with VFs has H.V in its low bytes, added to ADDRESS. Those in 127.0.0.0/8 are the host's own for TCP; guests
    /// and services on trunks find addresses of other networks, too, by ARP. [default: 127.77.0.0/16]
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
    /// Returns the options of the service: the arguments, the file, and defaults.
    pub(crate) fn options(&self) -> anyhow::Result<Options> {
        let mut options = match &self.config {
            Some(path) => GivenOptions::read(path)?,
            None => GivenOptions::default(),
        };
        self.set(&mut options);
        let mut options = options.with_defaults()?;
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

    /// Sets the options that the arguments name, over those of the file. A list replaces the file's list; access to sockets
    /// is set for each socket that is named.
    fn set(&self, options: &mut GivenOptions) {
        fn some<T: Clone>(option: &mut Option<T>, argument: Option<&T>) {
            if argument.is_some() {
                *option = argument.cloned();
            }
        }

        fn list<T: Clone>(option: &mut Vec<T>, argument: &[T]) {
            if !argument.is_empty() {
                *option = argument.to_vec();
            }
        }

        fn flag(option: &mut Option<bool>, argument: bool) {
            if argument {
                *option = Some(true);
            }
        }

        some(&mut options.topology, self.topology.as_ref());
        some(&mut options.sm, self.sm.as_ref());
        some(&mut options.manager, self.manager.as_ref());
        some(&mut options.lmc, self.lmc.as_ref());
        some(&mut options.part_enforce, self.part_enforce.as_ref());
        list(&mut options.bare, &self.bare);
        list(&mut options.pf, &self.pf);
        list(&mut options.trunks, &self.trunk);
        some(&mut options.site.name, self.site.as_ref());
        some(&mut options.site.key, self.trunk_key.as_ref());
        some(&mut options.site.peers, self.trunk_peers.as_ref());
        some(
            &mut options.site.certificate,
            self.trunk_certificate.as_ref(),
        );
        some(&mut options.site.ca, self.trunk_ca.as_ref());
        some(&mut options.vfs, self.vfs.as_ref());
        some(&mut options.guids, self.guids.as_ref());
        list(&mut options.rights, &self.rights);
        flag(&mut options.guests, self.guests);
        some(&mut options.vfio_user, self.vfio_user.as_ref());
        some(&mut options.quotas.guest_memory, self.guest_memory.as_ref());
        some(
            &mut options.quotas.program_memory,
            self.program_memory.as_ref(),
        );
        list(&mut options.attach, &self.attach);
        flag(&mut options.local_guids, self.local_guids);
        some(&mut options.seed, self.seed.as_ref());
        some(&mut options.control, self.own.control.as_ref());
        some(&mut options.umad, self.umad.as_ref());
        flag(&mut options.verbs, self.verbs);
        some(&mut options.program_vfs, self.program_vfs.as_ref());
        some(&mut options.verbs_network, self.verbs_network.as_ref());
        list(&mut options.ibsim, &self.ibsim);
        list(&mut options.ibsim_udp, &self.ibsim_udp);
        list(&mut options.ibsim_users, &self.ibsim_user);
        let access = self.access.iter().cloned();
        options
            .access
            .extend(access.map(|rule| (rule.name, rule.access)));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    #[test]
    fn arguments_come_before_the_file() {
        let mut file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        file.write_all(
            b"vfs = 2\nseed = 7\npf = [\"a\"]\nrights = [\"trap\"]\n\
              [quotas]\nguest_memory = 64\nprogram_memory = 8\njoins = 3\n\
              [access]\numad = { group = \"users\" }\ncontrol = { group = \"users\" }\n",
        )
        .unwrap();
        let path = file.path().to_str().unwrap();
        let line = "vhca --control /s --vfs 1 --guest-memory 512 --pf b,c --access control=:wheel --guests --config";
        let line = Line::parse_from(line.split(' ').chain([path]));
        let options = line.args.options().unwrap();
        assert_eq!((options.vfs, options.seed), (1, Some(7)));
        assert_eq!(options.quotas.guest_bytes(), Some(512 << 20));
        assert_eq!(options.quotas.program_bytes(), 8 << 20);
        assert_eq!(options.quotas.joins, Some(3));
        assert_eq!(
            (options.pf, options.rights),
            (vec!["b".into(), "c".into()], vec![Right::Trap])
        );
        assert!(options.guests && options.sandbox);
        let groups = options.access.into_values().map(|access| access.group);
        let groups: Vec<_> = groups.map(Option::unwrap).collect();
        assert_eq!(groups, ["wheel", "users"]);
        assert_eq!(options.umad, Some("/s.umad".into()));
    }
}
