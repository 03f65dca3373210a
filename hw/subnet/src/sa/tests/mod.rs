//! The SA's rules, one by one, on a small subnet.

mod membership;
mod pieces;
mod queries;
mod registrations;

use ib_wire::mad::{Mad, MadStatus};
use ib_wire::sa::{ComponentMask, SaRecord};
use ib_wire::{Gid, PKey, SubnetPrefix};

use super::*;
use crate::partition::{Membership, Partition, Partitions};
use crate::sm::Sm;
use crate::testing::{Fabric, bring_up, small};

/// Port GUIDs of the hosts.
const HOSTS: [Guid; 3] = [Guid::new(0x101), Guid::new(0x111), Guid::new(0x121)];
/// A partition of hosts 1 (full) and 2 (limited).
const TENANT: PKey = PKey::new(0x8012);
/// No component.
const NONE: ComponentMask = ComponentMask::NONE;

/// An SA with its subnet: host `i` has LID `lid(i)` and port GUID `HOSTS[i]`.
struct Subnet {
    sm: Sm,
    sa: Sa,
    now: Instant,
}

impl Subnet {
    fn new(config: SubnetConfig) -> Self {
        Self::of(&mut small(), config)
    }

    /// The subnet of a fabric.
    fn of(fabric: &mut Fabric, config: SubnetConfig) -> Self {
        let sm = bring_up(fabric, 0, config.clone());
        let mut sa = Sa::new(config);
        sa.set_last_mlid(sm.last_mlid());
        Self {
            sm,
            sa,
            now: Instant::ZERO,
        }
    }

    /// Everybody in the default partition, and the tenant's partition.
    fn partitioned() -> Self {
        let tenant = Partition {
            pkey: TENANT,
            others: None,
            members: [
                (HOSTS[1], Membership::Full),
                (HOSTS[2], Membership::Limited),
            ]
            .into(),
            ..Partition::default_full()
        };
        let partitions = Partitions::new([Partition::default_full(), tenant]);
        Self::new(SubnetConfig {
            partitions,
            ..SubnetConfig::default()
        })
    }

    fn lid(&self, host: usize) -> Lid {
        let id = self.sm.topology().port_by_guid(HOSTS[host]).unwrap();
        self.sm.topology().port(id).unwrap().info.lid
    }

    fn view(&self) -> SubnetView<'_> {
        SubnetView {
            topology: self.sm.topology(),
            manager: self.sm.sm_info(),
            other_managers: &[],
        }
    }

    fn send(&mut self, from: Lid, mad: &SaMad) -> Option<Message> {
        let view = SubnetView {
            topology: self.sm.topology(),
            manager: self.sm.sm_info(),
            other_managers: &[],
        };
        let message = Message::single(Mad::from_layout(mad));
        let mut answer = self
            .sa
            .handle(self.now, &view, &MadAddress::gsi(from), &message);
        while self.sa.has_unfinished() {
            assert!(answer.is_none(), "one answer");
            answer = self.sa.make_piece(self.now, &view).map(|(_, made)| made);
        }
        answer
    }

    /// A request of a host; the first record of the answer, or the status.
    fn ask<R: SaRecord>(
        &mut self,
        host: usize,
        method: Method,
        mask: ComponentMask,
        record: &R,
    ) -> Result<R, MadStatus> {
        let answer = self
            .send(self.lid(host), &SaMad::new(method, mask, record))
            .unwrap();
        match answer.status() {
            MadStatus::OK => Ok(answer.mad().view::<SaMad>().record()),
            status => Err(status),
        }
    }

    /// The records of a table, asked by a host with a key.
    fn table<R: SaRecord>(
        &mut self,
        host: usize,
        key: u64,
        mask: ComponentMask,
        record: &R,
    ) -> Result<Vec<R>, MadStatus> {
        let mut mad = SaMad::new(Method::GET_TABLE, mask, record);
        mad.sm_key = SmKey::new(key);
        let answer = self.send(self.lid(host), &mad).unwrap();
        let stride = answer.mad().view::<SaMad>().attribute_offset.get();
        match answer.status() {
            MadStatus::OK => Ok(ib_wire::sa::records(answer.data(), stride).collect()),
            status => Err(status),
        }
    }
}

fn gid(host: usize) -> Gid {
    Gid::from_parts(SubnetPrefix::DEFAULT, HOSTS[host])
}

fn invalid<T>() -> Result<T, MadStatus> {
    Err(MadStatus::SA_REQ_INVALID)
}
