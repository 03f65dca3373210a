//! VFs as people name them.

use vf_tunnel::VfId;
use vhca_control::Refusal;

use super::{Lab, LabHost};
use vhca::world::HostId;
use vhca_diagnosis::quoted;

/// A VF with the name of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedVf {
    /// The name of its host.
    pub host_name: String,
    /// Its host.
    pub host: HostId,
    /// The VF.
    pub vf: VfId,
}

impl Lab {
    /// The VFs that a text means: `N` (or `vfN`) of the host, `HOST/N`, or all of one or of every host: `HOST/all`,
    /// `all`. The host may also be given beside it. A VF of that number need not exist.
    ///
    /// # Errors
    /// A refusal that says what is wrong.
    pub fn vfs(&self, text: &str, host: Option<&str>) -> Result<Vec<NamedVf>, Refusal> {
        let (host, number) = match text.rsplit_once('/') {
            Some((within, number)) => {
                self.check_same(text, within, host)?;
                (Some(within), number)
            }
            None => (host, text),
        };
        let hosts: Vec<&LabHost> = match host {
            Some(name) => vec![self.pf_host(name)?],
            None => self.pf_hosts().collect(),
        };
        if number == "all" {
            if hosts.is_empty() && !self.awaited.is_empty() {
                return Err(self.no_vfs());
            }
            let vfs = hosts.into_iter().flat_map(|host| {
                let vfs = self.world().context(host.id).vfs();
                vfs.map(|vf| named(host, vf))
            });
            return Ok(vfs.collect());
        }
        let digits = number.strip_prefix("vf").unwrap_or(number);
        let vf = digits.parse().ok().and_then(VfId::new).ok_or_else(|| {
            let message = format!("{number:?} is no VF: say N, HOST/N, HOST/all, or all");
            Refusal::new("bad_vf", message)
        })?;
        match hosts[..] {
            [host] => Ok(vec![named(host, vf)]),
            [] => Err(self.no_vfs()),
            [first, ..] => {
                let message = format!(
                    "several hosts have VFs: say which, as in {}/{number}",
                    first.name
                );
                Err(Refusal::new("ambiguous_host", message))
            }
        }
    }

    /// Checks that a VF's name and the host beside it mean the same host.
    fn check_same(&self, text: &str, within: &str, host: Option<&str>) -> Result<(), Refusal> {
        match host {
            Some(host) if self.pf_host(host)? != self.pf_host(within)? => {
                let message = format!(
                    "{text} is no VF of {host}: leave out --host, or name the VF by its number alone"
                );
                Err(Refusal::new("two_hosts", message))
            }
            _ => Ok(()),
        }
    }

    fn no_vfs(&self) -> Refusal {
        let none = || Refusal::new("no_vfs", format!("no host has VFs: {}", self.why_no_vfs()));
        self.awaited.refusal(None).unwrap_or_else(none)
    }

    /// Returns why no host has VFs, and what to do about it.
    pub(super) fn why_no_vfs(&self) -> String {
        match self.hosts() {
            [only] => format!(
                "{} is the only adapter, and the subnet manager's: add another to the topology, or start vhca serve with \
                 --pf {} --vfs N",
                only.name,
                quoted(&only.name)
            ),
            _ => "start vhca serve with --vfs N, and --pf NODE for adapters called mgmt".to_owned(),
        }
    }

    /// The one VF that a text means; see [`Lab::vfs`]. It need not exist.
    ///
    /// # Errors
    /// A refusal that says what is wrong.
    pub fn vf(&self, text: &str, host: Option<&str>) -> Result<NamedVf, Refusal> {
        let mut vfs = self.vfs(text, host)?;
        match (vfs.pop(), vfs.is_empty()) {
            (Some(vf), true) => Ok(vf),
            _ => Err(Refusal::new("one_vf", "one VF is wanted: N, or HOST/N")),
        }
    }

    /// Returns `vf` if its host has such a VF.
    ///
    /// # Errors
    /// `no_such_vf`, with how many VFs the host has.
    pub fn existing<'v>(&self, vf: &'v NamedVf) -> Result<&'v NamedVf, Refusal> {
        let context = self.world().context(vf.host);
        if context.vfs().any(|known| known == vf.vf) {
            return Ok(vf);
        }
        let message = format!(
            "{} has no VF {}, it has {}: name one of these, or start vhca serve with more --vfs",
            vf.host_name,
            vf.vf.get(),
            context.vfs().count()
        );
        Err(Refusal::new("no_such_vf", message))
    }
}

fn named(host: &LabHost, vf: VfId) -> NamedVf {
    NamedVf {
        host_name: host.name.clone(),
        host: host.id,
        vf,
    }
}
