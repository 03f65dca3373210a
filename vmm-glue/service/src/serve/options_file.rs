//! Options as they are given: by flags, in a file, or not at all.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ib_wire::Lmc;
use serde::{Deserialize, Deserializer};
use thiserror::Error;
use vhca_control::Right;

use super::access::{AccessSpec, SocketName};
use super::attach_spec::AttachSpec;
use super::ibsim::sockets::IbsimAddress;
use super::options::{GuidPolicy, Options, Quotas, SidrSpec, SmChoice};
use super::options_error::OptionsError;
use super::policy::PolicyOptions;
use super::subnet::{PartEnforce, PartitionSpec, SubnetOptions, lmc};
use super::topology::TopologySpec;
use super::trunk_credentials::TrunkCredentials;
use super::trunk_spec::{TrunkSpec, complete};
use super::verbs::network::VerbsNetwork;
use ib_trunk::SiteName;

/// VFs of each shared adapter if nobody says how many.
pub(super) const VFS: u16 = 4;

/// Why a file of options cannot be used.
#[derive(Debug, Error)]
pub enum OptionsFileError {
    /// It cannot be read.
    #[error("{}: cannot read the options", .0.display())]
    Unreadable(PathBuf, #[source] io::Error),
    /// A line is wrong.
    #[error("{}: line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line.
        line: usize,
        /// The reason, in one line.
        reason: String,
    },
}

/// The options that somebody gave, by the names that they have in a file. See [`Options`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "each is an option of `Options`")]
pub struct GivenOptions {
    #[serde(default, deserialize_with = "topology")]
    pub topology: Option<TopologySpec>,
    pub sm: Option<SmChoice>,
    pub manager: Option<String>,
    #[serde(default, deserialize_with = "lmc")]
    pub lmc: Option<Lmc>,
    pub part_enforce: Option<PartEnforce>,
    #[serde(default)]
    pub partition: Vec<PartitionSpec>,
    #[serde(default)]
    pub bare: Vec<String>,
    #[serde(default)]
    pub site: SiteTable,
    #[serde(default, rename = "trunk")]
    pub trunks: Vec<TrunkSpec>,
    #[serde(default)]
    pub pf: Vec<String>,
    pub vfs: Option<u16>,
    pub guids: Option<GuidPolicy>,
    #[serde(default)]
    pub rights: Vec<Right>,
    pub guests: Option<bool>,
    pub vfio_user: Option<PathBuf>,
    #[serde(default)]
    pub quotas: Quotas,
    #[serde(default)]
    pub policy: PolicyOptions,
    #[serde(default)]
    pub sidr: Vec<SidrSpec>,
    #[serde(default, deserialize_with = "attach")]
    pub attach: Vec<AttachSpec>,
    pub local_guids: Option<bool>,
    pub seed: Option<u64>,
    pub control: Option<PathBuf>,
    pub umad: Option<PathBuf>,
    pub verbs: Option<bool>,
    pub program_vfs: Option<u16>,
    pub verbs_network: Option<VerbsNetwork>,
    /// Names of abstract sockets.
    #[serde(default)]
    pub ibsim: Vec<String>,
    /// UDP ports.
    #[serde(default)]
    pub ibsim_udp: Vec<u16>,
    #[serde(default)]
    pub ibsim_users: Vec<String>,
    #[serde(default)]
    pub access: BTreeMap<SocketName, AccessSpec>,
}

/// `[site]`: the service among others that trunks join.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteTable {
    /// Its name.
    #[serde(default, deserialize_with = "site_name")]
    pub name: Option<SiteName>,
    /// Private key of its trunks with TLS that name no other one.
    pub key: Option<PathBuf>,
    /// The public keys of the other ends.
    pub peers: Option<PathBuf>,
    /// Certificate of the key.
    pub certificate: Option<PathBuf>,
    /// The CAs of the other ends.
    pub ca: Option<PathBuf>,
}

impl SiteTable {
    fn credentials(&self) -> TrunkCredentials {
        TrunkCredentials {
            key: self.key.clone(),
            peers: self.peers.clone(),
            certificate: self.certificate.clone(),
            ca: self.ca.clone(),
        }
    }
}

fn site_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SiteName>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn topology<'de, D: Deserializer<'de>>(from: D) -> Result<Option<TopologySpec>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

fn attach<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<AttachSpec>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    let specs = texts.iter().map(|text| text.parse());
    specs
        .collect::<Result<_, _>>()
        .map_err(serde::de::Error::custom)
}

/// Returns what is wrong with a line, in one line, and with ranges in place of the names of number types.
fn reason(message: &str) -> String {
    let ranges = [
        ("expected u8", u64::from(u8::MAX)),
        ("expected u16", u64::from(u16::MAX)),
        ("expected u32", u64::from(u32::MAX)),
        // Numbers of TOML have a sign.
        ("expected u64", i64::MAX.unsigned_abs()),
    ];
    let message = message.replace('\n', "; ");
    let message = message.trim_end_matches(&[';', ' '][..]);
    match ranges.iter().find(|(end, _)| message.ends_with(end)) {
        Some((end, most)) => {
            let begin = message.trim_end_matches(end);
            format!("{begin}expected a whole number from 0 to {most}")
        }
        None => message.to_owned(),
    }
}

impl GivenOptions {
    /// Reads a TOML file. Relative paths in it are relative to the directory of the process.
    ///
    /// # Errors
    /// [`OptionsFileError`], with line and reason.
    pub fn read(path: &Path) -> Result<Self, OptionsFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| OptionsFileError::Unreadable(path.to_owned(), error))?;
        toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            OptionsFileError::Line {
                path: path.to_owned(),
                line: 1 + before.unwrap_or_default().matches('\n').count(),
                reason: reason(error.message()),
            }
        })
    }

    /// Where clients of the ibsim protocol attach.
    pub(super) fn ibsim_addresses(&self) -> impl Iterator<Item = IbsimAddress> {
        let names = self.ibsim.iter().cloned().map(IbsimAddress::Unix);
        names.chain(self.ibsim_udp.iter().copied().map(IbsimAddress::Udp))
    }

    /// Returns the number of VFs of each adapter that are for programs.
    fn for_programs(&self) -> u16 {
        match (self.verbs, self.program_vfs) {
            (Some(true), Some(some)) => some,
            (Some(true), None) => self.vfs.unwrap_or(VFS),
            _ => 0,
        }
    }

    /// Returns the options, with defaults for those that were not given.
    ///
    /// # Errors
    /// [`OptionsError`] if they cannot be used together.
    pub fn with_defaults(mut self) -> Result<Options, OptionsError> {
        self.check()?;
        complete(&mut self.trunks, &self.site.credentials())?;
        let ibsim = self.ibsim_addresses().collect();
        let program_vfs = self.for_programs();
        Ok(Options {
            topology: self.topology.unwrap_or_default(),
            sm: self.sm.unwrap_or_default(),
            manager: self.manager,
            subnet: SubnetOptions {
                partitions: self.partition,
                lmc: self.lmc,
                part_enforce: self.part_enforce,
            },
            bare: self.bare,
            site: self.site.name,
            trunks: self.trunks,
            pf: self.pf,
            vfs: self.vfs.unwrap_or(VFS),
            guids: self.guids.unwrap_or_default(),
            rights: self.rights,
            guests: self.guests.unwrap_or_default(),
            vfio_user: self.vfio_user,
            quotas: self.quotas,
            policy: self.policy,
            sidr: self.sidr,
            attach: self.attach,
            local_guids: self.local_guids.unwrap_or_default(),
            seed: self.seed,
            control: self.control,
            umad: self.umad,
            verbs: self.verbs.unwrap_or_default(),
            program_vfs,
            verbs_network: self.verbs_network.unwrap_or_default(),
            ibsim,
            ibsim_users: self.ibsim_users,
            access: self.access,
            sandbox: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<GivenOptions, String> {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(file.path(), text).unwrap();
        GivenOptions::read(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_example_is_understood() {
        let text = include_str!("../../docs/serve.md");
        let (_, rest) = text.split_once("```toml\n").unwrap();
        let (example, _) = rest.split_once("```").unwrap();
        let given = read(example).unwrap();
        assert_eq!(given.topology, Some(TopologySpec::TwoSwitch));
        assert_eq!(given.sm, Some(SmChoice::Lite));
        assert_eq!(given.vfs, Some(16));
        assert_eq!(given.pf.len(), 4);
        assert_eq!(given.quotas.sa_requests, Some(256));
        assert_eq!(given.policy.policy(), pf_context::Policy::default());
        let all = [
            "manager",
            "bare",
            "guids",
            "rights",
            "guests",
            "vfio_user",
            "seed",
            "control",
            "cm_pending",
            "ibsim_users",
            "guest_memory",
            "services",
            "lmc",
            "part_enforce",
            "[[partition]]",
        ];
        let control = &given.access[&SocketName::Control];
        assert_eq!(control.group.as_deref(), Some("vhca"));
        assert_eq!(given.access.len(), 4);
        assert!(all.iter().all(|key| example.contains(key)));
    }

    #[test]
    fn the_packaged_example_is_understood_as_it_stands_and_with_all_that_it_shows() {
        let example = include_str!("../../packaging/vhca.toml");
        let given = read(example).unwrap();
        assert_eq!((given.vfs, given.sm), (Some(VFS), Some(SmChoice::Lite)));
        given.with_defaults().unwrap();
        // Options stand behind `#` without a blank; of three that exclude each other one can be had.
        let shown = |line: &str| match line.strip_prefix('#') {
            Some(option) if !option.starts_with(' ') => format!("{option}\n"),
            _ => format!("{line}\n"),
        };
        let all: String = example.lines().map(shown).collect();
        let all = read(&all).unwrap();
        assert!(all.vfio_user.is_some() && all.verbs.is_some() && all.guests.is_some());
        assert_eq!((all.access.len(), all.partition.len()), (2, 1));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, why) in [
            ("vfs = 4\nvvfs = 5\n", "line 2", "unknown field `vvfs`"),
            (
                "vfs = \"many\"\n",
                "line 1",
                "invalid type: string \"many\", expected a whole number from 0 to 65535",
            ),
            (
                "seed = 1\n[quotas]\ntids = -1\n",
                "line 3",
                "invalid value: integer `-1`, expected a whole number from 0 to 4294967295",
            ),
            ("\n\nsm = \"big\"\n", "line 3", "unknown variant `big`"),
            ("topology = \"ring\"\n", "line 1", "no topology"),
            (
                "vfs = 1\n[quotas]\nbeer = 2\n",
                "line 3",
                "unknown field `beer`",
            ),
            ("attach = [\"x\"]\n", "line 1", "ibsim:SOCKNAME"),
            ("[quotas]\ntids = 0\n", "line 2", "a quota of 0"),
            ("[quotas]\ngroups = 0\n", "line 2", "a quota of 0"),
            ("[quotas]\nguest_memory = 0\n", "line 2", "a quota of 0"),
            ("[quotas]\nprogram_memory = 0\n", "line 2", "a quota of 0"),
            (
                "[[sidr]]\nhost = \"a\"\nvf = 1\nat = [\"7174\"]\n",
                "line 4",
                "an IP address",
            ),
            ("lmc = 8\n", "line 1", "8 is no LMC"),
            (
                "vfs = 1\n[[partition]]\npkey = 0\n",
                "line 3",
                "0x0000 is no P_Key",
            ),
            ("vfs = 4\nvfs = 5\n", "line 2", "duplicate key"),
            ("vfs =\n", "line 1", ""),
            ("[access]\ndoor = {}\n", "line 2", "\"door\" is no socket"),
            (
                "[access]\nall = { mode = \"0777\" }\n",
                "line 2",
                "no mode of a socket",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(
                error.contains(&format!(".toml: {line}: "))
                    && error.contains(why)
                    && !error.contains('\n'),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let error = GivenOptions::read(Path::new("/nonexistent/vhca.toml")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/vhca.toml"));
    }

    #[test]
    fn options_that_are_not_given_have_defaults() {
        let options = GivenOptions::default().with_defaults().unwrap();
        assert_eq!(options.vfs, VFS);
        assert_eq!(options.topology, TopologySpec::TwoSwitch);
        assert_eq!(options.quotas.program_bytes(), 64 << 20);
    }

    #[test]
    fn options_that_cannot_be_used_together_are_refused_with_what_to_do() {
        for (text, error) in [
            (
                "attach = [\"ibsim:s/a\"]\ntopology = \"single\"\n",
                "attach and topology exclude each other, because an attached service has the fabric and \
                 subnet manager of others: leave out one of them",
            ),
            (
                "attach = [\"ibsim:s/a\"]\nsm = \"none\"\n",
                "attach and sm exclude each other, because an attached service has the fabric and subnet \
                 manager of others: leave out one of them",
            ),
            (
                "attach = [\"ibsim:s/a,b\", \"ibsim:t/a\", \"ibsim:s/b\"]\n",
                "attach names s/b twice: name it once",
            ),
            (
                "attach = [\"linux:mlx5_0/1\", \"ibsim:s/a\"]\n",
                "attach names a port of a Linux HCA and something else: one service has one such port, so start another service for each",
            ),
            (
                "attach = [\"ibsim:udp:7/a\"]\nibsim_udp = [7]\n",
                "attach and ibsim both name 127.0.0.1:7: choose another name, since a service cannot attach to itself",
            ),
            (
                "local_guids = true\n",
                "local_guids needs attach: leave it out, or name nodes of a simulator with attach",
            ),
            (
                "guests = true\nvfio_user = \"/x\"\n",
                "guests and vfio_user exclude each other, because a VF has either a guest's software or a VMM: leave \
                 out one of them",
            ),
            (
                "verbs = true\nvfio_user = \"/x\"\n",
                "verbs and vfio_user share the VFs of each adapter, of which there are 4: say by program_vfs how many are for \
                 programs, at least one and not all",
            ),
            (
                "verbs = true\nvfio_user = \"/x\"\nvfs = 2\nprogram_vfs = 2\n",
                "verbs and vfio_user share the VFs of each adapter, of which there are 2: say by program_vfs how many are for \
                 programs, at least one and not all",
            ),
            (
                "verbs = true\nprogram_vfs = 2\n",
                "program_vfs needs verbs and vfio_user, which share the VFs: leave it out, or give both",
            ),
            (
                "verbs = true\nvfio_user = \"/x\"\nprogram_vfs = 1\n[access]\nverbs = { mode = \"0666\" }\n",
                "access to verbs excludes verbs beside vfio_user, because a program of another user could keep guests \
                 waiting: leave it out, or serve programs and VMMs by services of their own",
            ),
            (
                "pf = [\"a\", \"b\", \"a\"]\n",
                "pf names a twice: name it once",
            ),
            (
                "attach = [\"ibsim:s/a\"]\nbare = [\"a\"]\n",
                "attach and bare exclude each other, because an attached service has the fabric and subnet \
                 manager of others: leave out one of them",
            ),
            (
                "bare = [\"a\", \"a\"]\n",
                "bare names a twice: name it once",
            ),
            (
                "bare = [\"\"]\n",
                "bare is empty: give it a value, or leave it out",
            ),
            (
                "pf = [\"\"]\n",
                "pf is empty: give it a value, or leave it out",
            ),
            (
                "manager = \"\"\n",
                "manager is empty: give it a value, or leave it out",
            ),
            (
                "control = \"\"\n",
                "control is empty: give it a value, or leave it out",
            ),
            (
                "control = \"/x\"\numad = \"/x\"\n",
                "control and umad are both /x: give them different paths",
            ),
            (
                "ibsim = [\"\"]\n",
                "ibsim names \"\": choose a name of 1 to 92 bytes, none of them zero",
            ),
            (
                "ibsim = [\"a\\u0000\"]\n",
                "ibsim names \"a\\0\": choose a name of 1 to 92 bytes, none of them zero",
            ),
            (
                "ibsim = [\"a\", \"a\"]\n",
                "ibsim names a twice: name it once",
            ),
            (
                "ibsim_udp = [7, 7]\n",
                "ibsim_udp names 7 twice: name it once",
            ),
            (
                "ibsim_udp = [0]\n",
                "ibsim_udp is 0: choose a port from 1 to 65534, since each client takes one above it",
            ),
        ] {
            let refused = read(text).unwrap().with_defaults().unwrap_err();
            assert_eq!(refused.to_string(), error, "{text}");
        }
    }
}
