//! VFs that programs can have, and which of them a program gets.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::Ipv4Addr;
use std::sync::Arc;

use cm_paravirt::{SidrEntry, SidrTarget};
use emulated_hca::hca::ConnectionCounters;
use hca_api::Hca;
use ib_wire::Gid;
use pf_context::inspect::Inspect;
use rustix::process::Pid;
use verbs_link::{AddressBook, Budget, DeviceView, Namespace, Resources};
use vf_tunnel::VfId;
use vhca::world::{HostFunction, HostId, VfError};
use vhca_receiver::PassedFd;

use super::memory::ProcessMemory;
use super::network::VerbsNetwork;
use super::process_vf::{Holder, ProcessVf};
use super::program::{PORT, ProgramLimit, VfProgram};
use super::refusal::ClaimRefusal;
use super::rings::MappedRings;
use crate::serve::access::SocketName;
use crate::serve::lab::Lab;
use crate::serve::lab_error::LabError;
use crate::serve::vfio_user::seat::Seat;
use crate::show::ProgramRow;

/// Steps in which the objects of a program are destroyed at its end on an adapter that others use. The rest goes with the next turns.
const END_STEPS: u32 = 64;

impl Lab {
    /// Offers a VF on which nothing runs, and that reaches `memory`, to programs, at an address of a network.
    ///
    /// # Errors
    /// [`LabError::NoAddress`], [`LabError::Device`].
    pub(crate) fn offer_to_programs(
        &mut self,
        host_name: &str,
        host: HostId,
        vf: VfId,
        memory: ProcessMemory,
        network: VerbsNetwork,
        limit: ProgramLimit,
    ) -> Result<(), LabError> {
        let address = self.address_of(network, host, vf);
        let address = address.ok_or_else(|| LabError::NoAddress(host_name.to_owned(), network))?;
        let mut program = VfProgram::new(self.secrets.secret(), limit);
        let beyond = network.beyond();
        if beyond.is_some() {
            program = program.with_node(address, self.address_conflicts.sender());
            let named = self.name_for_datagrams(host, vf, &[address]);
            named.map_err(|error| LabError::Vf(host_name.to_owned(), vf, error))?;
        }
        let placed = self.world_mut().add_consumer(host, vf, Box::new(program));
        let at = placed.map_err(|error| LabError::Device(host_name.to_owned(), vf, error))?;
        let offered = ProcessVf {
            address: Some(address),
            host,
            host_name: host_name.to_owned(),
            vf: Some(vf),
            memory,
            network: beyond,
            aliases: Vec::new(),
            holder: None,
        };
        self.process_vfs.insert(at, offered);
        Ok(())
    }

    /// Offers the adapter of a bare node, whose function reaches `memory`, to programs.
    pub(crate) fn offer_bare_node(
        &mut self,
        host_name: &str,
        host: HostId,
        memory: ProcessMemory,
        limit: ProgramLimit,
    ) {
        let program = VfProgram::on_bare_node(self.secrets.secret(), limit);
        let placed = self.world_mut().add_to_bare_host(host, Box::new(program));
        if let Ok(at) = placed {
            let offered = ProcessVf {
                address: None,
                host,
                host_name: host_name.to_owned(),
                vf: None,
                memory,
                network: None,
                aliases: Vec::new(),
                holder: None,
            };
            self.process_vfs.insert(at, offered);
        }
    }

    /// Assigns a program the VF that it names as `NODE/N`, or the next free one of `NODE`, or of any node. Returns its budget,
    /// too.
    ///
    /// # Errors
    /// [`ClaimRefusal`]: there is none, it is taken, or it is being reset.
    pub(super) fn claim_vf(
        &mut self,
        name: &str,
        rings: &Arc<MappedRings>,
        process: PassedFd,
        holder: Holder,
    ) -> Result<(HostFunction, Budget), ClaimRefusal> {
        let candidates = self.offered_by_name(name);
        if candidates.is_empty() {
            return Err(self.no_candidate(name));
        }
        let mut refused = self.taken(name, &candidates);
        for at in candidates {
            let program = self.world_mut().consumer_mut::<VfProgram>(at);
            let Some(program) = program else { continue };
            if program.claim(rings.clone()) {
                let budget = program.device.budget().clone();
                if let Some(offered) = self.process_vfs.get_mut(&at) {
                    offered.memory.set(Some(process));
                    offered.memory.set_client(holder.client);
                    offered.holder = Some(holder);
                }
                return Ok((at, budget));
            }
            if program.device.is_resetting() {
                let vf = self.process_vfs.get(&at).map(ProcessVf::description);
                refused = ClaimRefusal::Resetting(vf.unwrap_or_default());
            }
        }
        Err(refused)
    }

    /// Returns the VFs for programs that a name means: `NODE/N`, all of `NODE`, or all.
    fn offered_by_name(&self, name: &str) -> Vec<HostFunction> {
        let (node, number) = split(name);
        let wanted = match node {
            "" => None,
            node => match self.inventory.node(node) {
                None => return Vec::new(),
                node => node,
            },
        };
        let world = self.world();
        let is_wanted = |offered: &ProcessVf| {
            let node = world.host(offered.host).node();
            let is_numbered = number.is_none_or(|number| number_of(offered) == Some(number));
            // A program gets the adapter of a bare node only if it names the node.
            let is_meant = match wanted {
                Some(wanted) => wanted == node,
                None => offered.vf.is_some(),
            };
            is_meant && is_numbered
        };
        let offered = self.process_vfs.iter();
        let wanted = offered.filter(|(_, offered)| is_wanted(offered));
        wanted.map(|(at, _)| *at).collect()
    }

    /// Returns `true` if programs can have VFs.
    pub(in crate::serve) fn has_program_vfs(&self) -> bool {
        !self.process_vfs.is_empty()
    }

    /// Returns the VF that a process sees: the one that it has, the one that it names, or the one that it would get next.
    pub(in crate::serve) fn shown_vf(
        &self,
        name: &str,
        process: Option<Pid>,
    ) -> Option<HostFunction> {
        let pid = process.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
        let has = |vf: &ProcessVf| vf.holder.is_some_and(|holder| holder.pid == pid);
        let mut offered = self.process_vfs.iter();
        let held = offered.find(|(_, vf)| pid.is_some() && has(vf));
        if let Some((at, _)) = held {
            return Some(*at);
        }
        let mut candidates = self.offered_by_name(name).into_iter();
        let is_one = |at: &HostFunction| self.process_vfs.get(at).is_some_and(|vf| vf.vf.is_none());
        if split(name).1.is_some() || candidates.as_slice().iter().any(is_one) {
            return candidates.next();
        }
        let program = |at: &HostFunction| self.world().consumer::<VfProgram>(*at);
        candidates.find(|at| program(at).is_some_and(|program| program.device.is_free()))
    }

    /// Returns why no VF for programs has a name.
    fn no_candidate(&self, name: &str) -> ClaimRefusal {
        let (node, number) = split(name);
        if !node.is_empty() && self.inventory.node(node).is_none() {
            return ClaimRefusal::NoNode(node.to_owned());
        }
        let Some(vf) = number else {
            return ClaimRefusal::NoneOffered(said(name));
        };
        let named = VfId::new(vf).map(|vf| SocketName::Vf(node.to_owned(), vf));
        let is_named = |seat: &Seat| named.as_ref().is_some_and(|named| seat.is_called(named));
        let for_vmms = self.seats.values().any(is_named);
        let reason = if for_vmms { ", but for VMMs" } else { "" };
        ClaimRefusal::NoVf(name.to_owned(), reason)
    }

    /// Returns the refusal of VFs that processes have.
    fn taken(&self, name: &str, candidates: &[HostFunction]) -> ClaimRefusal {
        let [at] = candidates else {
            return ClaimRefusal::AllTaken(said(name), candidates.len());
        };
        let Some(offered) = self.process_vfs.get(at) else {
            return ClaimRefusal::AllTaken(said(name), 1);
        };
        let pid = offered.holder.and_then(|holder| holder.pid);
        let process = pid.map(|pid| format!("process {pid}"));
        let process = process.unwrap_or_else(|| "a process of another namespace".to_owned());
        ClaimRefusal::Taken(offered.description(), process)
    }

    /// Takes a VF back from a program that is gone.
    pub(super) fn release_vf(&mut self, at: HostFunction) {
        if let Some(program) = self.world_mut().consumer_mut::<VfProgram>(at) {
            program.release();
        }
        // Before its memory goes: a peer that reads from it is answered by nobody, rather than told of an error.
        self.world_mut().carry_out_reset(at);
        for _ in 0..END_STEPS {
            let program = self.world().consumer::<VfProgram>(at);
            if !program.is_some_and(|program| program.device.is_resetting()) {
                break;
            }
            self.world_mut().carry_out_reset(at);
        }
        if let Some(offered) = self.process_vfs.get_mut(&at) {
            offered.memory.set(None);
            offered.holder = None;
        }
        self.set_aliases(at, Vec::new());
    }

    /// Names the VF of a program by the addresses of the program's network namespace, so that other nodes find it by them. In the
    /// service's own namespace the addresses are the machine's, and the VF has none of them.
    pub(super) fn take_namespace(&mut self, at: HostFunction, namespace: Namespace) {
        let is_own = self
            .network_namespace
            .is_none_or(|own| own == namespace.number);
        let network = self.process_vfs.get(&at).and_then(|vf| vf.network);
        if let Some(network) = network.filter(|_| !is_own && namespace.number != 0) {
            let mut addresses = namespace.addresses;
            // Those are of VFs.
            addresses.retain(|address| !network.contains(*address));
            self.set_aliases(at, addresses);
        }
    }

    fn set_aliases(&mut self, at: HostFunction, aliases: Vec<Ipv4Addr>) {
        let Some(offered) = self.process_vfs.get_mut(&at) else {
            return;
        };
        if offered.aliases == aliases {
            return;
        }
        offered.aliases.clone_from(&aliases);
        let (host, vf, own) = (offered.host, offered.vf, offered.address);
        self.world_mut()
            .with_consumer(at, |program: &mut VfProgram, _, _| {
                program.set_aliases(&aliases)
            });
        if let Some((vf, own)) = vf.zip(own) {
            let all: Vec<Ipv4Addr> = iter::once(own).chain(aliases).collect();
            // Without a name guests do not find datagram services by it, and everything else goes on.
            let _ = self.name_for_datagrams(host, vf, &all);
        }
    }

    /// Names a VF by addresses in requests for datagram services, which guests send without a GRH.
    fn name_for_datagrams(
        &mut self,
        host: HostId,
        vf: VfId,
        addresses: &[Ipv4Addr],
    ) -> Result<(), VfError> {
        let entries = addresses.iter().map(|address| SidrEntry {
            target: SidrTarget::Address((*address).into()),
            pkey: None,
        });
        let entries: Vec<SidrEntry> = entries.collect();
        Ok(self.world_mut().context_mut(host).set_sidr(vf, &entries)?)
    }

    /// Returns the address of a VF. `None` if the network has none for its host.
    fn address_of(&self, network: VerbsNetwork, host: HostId, vf: VfId) -> Option<Ipv4Addr> {
        let of_vfs = self.process_vfs.values().filter(|vf| vf.vf.is_some());
        let hosts: BTreeSet<HostId> = of_vfs.map(|vf| vf.host).collect();
        let known = hosts.iter().position(|known| *known == host);
        network.address(known.unwrap_or(hosts.len()), vf)
    }

    /// Returns the addresses by which the program on a VF finds VFs that have a GID. `None` if the VF is not offered.
    pub(super) fn addresses(&self, at: HostFunction) -> Option<AddressBook> {
        let asking = self.process_vfs.get(&at)?;
        let (own, network) = (asking.address?, asking.network);
        let aliases = asking.aliases.clone();
        let hosts: BTreeSet<HostId> = self.process_vfs.values().map(|vf| vf.host).collect();
        let gids: BTreeMap<(HostId, VfId), Gid> = hosts
            .iter()
            .flat_map(|host| {
                let gids = self.gids_of(*host);
                gids.map(|(vf, gid)| ((*host, vf), gid))
            })
            .collect();
        let known = self.process_vfs.values();
        let known = known.filter_map(|vf| Some((vf.address?, *gids.get(&(vf.host, vf.vf?))?)));
        Some(AddressBook {
            own,
            aliases,
            gids: known.collect(),
            network,
        })
    }

    /// Returns the GIDs of a host's VFs that have one.
    fn gids_of(&self, host: HostId) -> impl Iterator<Item = (VfId, Gid)> {
        let context = self.world().host(host).context();
        let rows = context.into_iter().flat_map(|context| context.guids());
        let rows = rows.filter(|row| row.port == PORT);
        rows.filter_map(|row| Some((row.vf, row.gid?)))
    }

    /// Returns the VFs of a host that programs can have, and those that do.
    pub(in crate::serve) fn program_rows(&self, host: &str) -> Vec<ProgramRow> {
        let offered = self.process_vfs.iter();
        let offered: Vec<_> = offered.filter(|(_, vf)| vf.host_name == host).collect();
        let gids: BTreeMap<VfId, Gid> = match offered.first() {
            Some((_, vf)) => self.gids_of(vf.host).collect(),
            None => return Vec::new(),
        };
        let now = self.world().now();
        let row = |(at, vf): (&HostFunction, &ProcessVf)| {
            let number = number_of(vf)?;
            let program = self.world().consumer::<VfProgram>(*at);
            Some(ProgramRow {
                vf: number,
                address: vf.address?,
                gid: gids.get(&vf.vf?).copied(),
                pid: vf.holder.and_then(|holder| holder.pid),
                uid: vf.holder.and_then(|holder| holder.uid),
                since: vf.holder.map(|holder| now - holder.since),
                memory_wait: vf.memory.longest_wait(),
                slow_memory: vf.memory.slow(),
                usage: program.map(VfProgram::usage).unwrap_or_default(),
            })
        };
        offered.into_iter().filter_map(row).collect()
    }

    /// Returns the device of a VF as its program sees it before it opens the device.
    pub(in crate::serve) fn device_view(
        &mut self,
        at: HostFunction,
        name: &str,
    ) -> Option<DeviceView> {
        let description = self.process_vfs.get(&at)?.description();
        self.world_mut()
            .with_consumer(at, |_: &mut VfProgram, hca, _| {
                DeviceView::of(hca, name.to_owned(), 0, description)
            })
    }

    /// Returns the device with its counters, and with its objects if a user's program has it, or the user is root.
    pub(super) fn device_view_of(
        &mut self,
        at: HostFunction,
        name: &str,
        uid: Option<u32>,
    ) -> Option<DeviceView> {
        let mut view = self.device_view(at, name)?;
        let counters = self.connections_of(at).map(|of| hw_counters(&of));
        for port in &mut view.ports {
            port.hw_counters = counters.clone().unwrap_or_default();
        }
        let holder = self.process_vfs.get(&at)?.holder;
        if let Some(holder) = holder.filter(|holder| uid == Some(0) || holder.uid == uid) {
            let of = |program: &mut VfProgram, hca: &mut dyn Hca, _| Resources {
                pid: holder.pid,
                cm_ids: program.usage().cm_ids,
                ..program.device.resources(hca)
            };
            view.resources = self.world_mut().with_consumer(at, of)?;
        }
        Some(view)
    }

    /// Returns the counters of a VF's connections.
    pub(in crate::serve) fn connections_of(&self, at: HostFunction) -> Option<ConnectionCounters> {
        let world = self.world();
        let device = world.fabric().device(world.host(at.host).node())?;
        let mut functions = device.connection_counters();
        let own = functions.find(|(function, _)| *function == at.function)?;
        Some(own.1)
    }
}

/// Returns the number of a VF.
fn number_of(offered: &ProcessVf) -> Option<u16> {
    offered.vf.map(VfId::get)
}

/// Returns counters of a function by the names of their files in sysfs. The kernel renews them when they are older than
/// `lifespan` milliseconds.
pub(in crate::serve) fn hw_counters(of: &ConnectionCounters) -> Vec<(&'static str, u64)> {
    vec![
        ("lifespan", 10),
        ("rcvd_bytes", of.received_bytes),
        ("rcvd_rnr_err", of.rnr_naks),
        ("retransmissions", of.retransmissions),
        ("sent_bytes", of.sent_bytes),
    ]
}

/// Returns a node's name for a message; a program may leave it out.
fn said(name: &str) -> String {
    if name.is_empty() { "the service" } else { name }.to_owned()
}

/// Splits the number of a VF off a name.
pub(crate) fn split(name: &str) -> (&str, Option<u16>) {
    let parts = name.rsplit_once('/');
    let parts = parts.and_then(|(node, number)| Some((node, number.parse().ok()?)));
    parts.map_or((name, None), |(node, number)| (node, Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_end_with_the_number_of_a_vf() {
        assert_eq!(split("H1-1/3"), ("H1-1", Some(3)));
        assert_eq!(split("H1-1"), ("H1-1", None));
        assert_eq!(split("a/b"), ("a/b", None));
        assert_eq!(split(""), ("", None));
    }
}
