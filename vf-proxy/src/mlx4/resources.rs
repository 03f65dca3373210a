//! Numbers of objects that the driver asks for before it makes them, and gives back after
//! (`ALLOC_RES`, `FREE_RES`).

use hca_api::{Hca, SpecialQp};
use ib_wire::{PortNum, Qpn};
use mlx4_defs::Status;
use mlx4_defs::resource::{QpReservation, ResourceOp, ResourceParam, ResourceType};

use super::capability::{COUNTER_NUMBERS, CQ_NUMBERS, MPT_NUMBERS, Quotas, SRQ_NUMBERS};
use super::mpt::Mpts;
use super::mtt::Mtts;
use super::ownership::{Numbers, Ownership};
use super::pd::status_of;

/// Largest alignment of queue pair numbers that the driver can ask for.
const MAX_QPN_ALIGN: u32 = 1 << 12;
/// Numbers of the special queue pairs' stand-ins: proxies and tunnels of QP0 and QP1, each of two ports.
const SPECIAL_QPNS: u32 = 8;

/// What the driver wants numbers of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allocation {
    /// Queue pair numbers in a row, the first a multiple of `align`.
    Qpns { count: u32, align: u32 },
    /// The context of a queue pair.
    Qp { qpn: u32 },
    /// A completion queue.
    Cq,
    /// A shared receive queue.
    Srq,
    /// An index of a memory region.
    Mpt,
    /// The entry of a memory region.
    MptEntry { index: u32 },
    /// Entries of the translation table.
    Mtts { order: u8 },
    /// A counter.
    Counter,
}

impl Allocation {
    /// What a command asks for.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for kinds that the function does not have.
    pub(super) fn parse(kind: ResourceType, op: ResourceOp, param: u64) -> Result<Self, Status> {
        let ResourceParam { low, high } = param.into();
        match (kind, op) {
            (ResourceType::QP, ResourceOp::RESERVE) => Ok(Self::Qpns {
                count: QpReservation { word: low.into() }.count(),
                align: high.max(1),
            }),
            (ResourceType::QP, ResourceOp::MAP_ICM) => Ok(Self::Qp { qpn: low }),
            (ResourceType::CQ, ResourceOp::RESERVE_AND_MAP) => Ok(Self::Cq),
            (ResourceType::SRQ, ResourceOp::RESERVE_AND_MAP) => Ok(Self::Srq),
            (ResourceType::MPT, ResourceOp::RESERVE) => Ok(Self::Mpt),
            (ResourceType::MPT, ResourceOp::MAP_ICM) => Ok(Self::MptEntry { index: low }),
            (ResourceType::MTT, ResourceOp::RESERVE_AND_MAP) => {
                Ok(Self::Mtts { order: order(low)? })
            }
            (ResourceType::COUNTER, ResourceOp::RESERVE) => Ok(Self::Counter),
            _ => Err(Status::BAD_PARAM),
        }
    }
}

/// What the driver gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// Queue pair numbers in a row.
    Qpns { first: u32, count: u32 },
    /// The context of a queue pair.
    Qp { qpn: u32 },
    /// A completion queue.
    Cq { cqn: u32 },
    /// A shared receive queue.
    Srq { srqn: u32 },
    /// An index of a memory region.
    Mpt { index: u32 },
    /// The entry of a memory region.
    MptEntry { index: u32 },
    /// Entries of the translation table.
    Mtts { first: u32, order: u8 },
    /// A counter.
    Counter { index: u32 },
}

impl Release {
    /// What a command gives back.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for kinds that the function does not have.
    pub(super) fn parse(kind: ResourceType, op: ResourceOp, param: u64) -> Result<Self, Status> {
        let ResourceParam { low, high } = param.into();
        match (kind, op) {
            (ResourceType::QP, ResourceOp::RESERVE) => Ok(Self::Qpns {
                first: low,
                count: high,
            }),
            (ResourceType::QP, ResourceOp::MAP_ICM) => Ok(Self::Qp { qpn: low }),
            (ResourceType::CQ, ResourceOp::RESERVE_AND_MAP) => Ok(Self::Cq { cqn: low }),
            (ResourceType::SRQ, ResourceOp::RESERVE_AND_MAP) => Ok(Self::Srq { srqn: low }),
            (ResourceType::MPT, ResourceOp::RESERVE) => Ok(Self::Mpt { index: low }),
            (ResourceType::MPT, ResourceOp::MAP_ICM) => Ok(Self::MptEntry { index: low }),
            (ResourceType::MTT, ResourceOp::RESERVE_AND_MAP) => Ok(Self::Mtts {
                first: low,
                order: order(high)?,
            }),
            (ResourceType::COUNTER, ResourceOp::RESERVE) => Ok(Self::Counter { index: low }),
            _ => Err(Status::BAD_PARAM),
        }
    }
}

fn order(log2: u32) -> Result<u8, Status> {
    u8::try_from(log2).map_err(|_| Status::BAD_PARAM)
}

/// The numbers by which a driver knows the stand-ins of the special queue pairs, as the PF lays them out
/// (`mlx4_init_qp_table`): proxies of QP0 by port, of QP1 by port, then the tunnels in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpecialQpns {
    first: u32,
}

impl SpecialQpns {
    const fn slot(special: SpecialQp, port: PortNum) -> u32 {
        let of_port = (port.0 as u32).saturating_sub(1) & 1;
        match special {
            SpecialQp::Smi => of_port,
            SpecialQp::Gsi => 2 + of_port,
        }
    }

    /// The driver's proxy.
    pub(super) const fn proxy(self, special: SpecialQp, port: PortNum) -> Qpn {
        Qpn::from_low_bits(self.first + Self::slot(special, port))
    }

    /// Where the proxy sends.
    pub(super) const fn tunnel(self, special: SpecialQp, port: PortNum) -> Qpn {
        Qpn::from_low_bits(self.first + 4 + Self::slot(special, port))
    }

    /// Which proxy has a number.
    pub(super) fn proxy_of(self, qpn: u32) -> Option<(SpecialQp, PortNum)> {
        match qpn.checked_sub(self.first)? {
            0 => Some((SpecialQp::Smi, PortNum(1))),
            1 => Some((SpecialQp::Smi, PortNum(2))),
            2 => Some((SpecialQp::Gsi, PortNum(1))),
            3 => Some((SpecialQp::Gsi, PortNum(2))),
            _ => None,
        }
    }

    const fn contains(self, qpn: u32) -> bool {
        qpn.wrapping_sub(self.first) < SPECIAL_QPNS
    }
}

/// The numbers that the driver has.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) qps: Ownership,
    pub(super) cqs: Numbers,
    pub(super) srqs: Numbers,
    pub(super) mpts: Numbers,
    pub(super) counters: Numbers,
    special: Option<SpecialQpns>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            qps: Ownership::default(),
            cqs: Numbers::new(CQ_NUMBERS),
            srqs: Numbers::new(SRQ_NUMBERS),
            mpts: Numbers::new(MPT_NUMBERS),
            counters: Numbers::new(COUNTER_NUMBERS),
            special: None,
        }
    }
}

impl Resources {
    /// The special queue pairs' numbers, which are set aside when somebody first asks.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`].
    pub(super) fn special_qpns(&mut self, hca: &mut dyn Hca) -> Result<SpecialQpns, Status> {
        if let Some(special) = self.special {
            return Ok(special);
        }
        let first = hca.reserve_qpns(SPECIAL_QPNS, SPECIAL_QPNS);
        let first = first.map_err(|_| Status::EXCEED_LIM)?.get();
        self.qps.reserve(first, SPECIAL_QPNS / 2);
        let special = SpecialQpns { first };
        self.special = Some(special);
        Ok(special)
    }

    /// The special queue pairs' numbers, if somebody asked for them.
    pub(super) const fn known_special_qpns(&self) -> Option<SpecialQpns> {
        self.special
    }

    /// Gives numbers; the result is the first of them.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`], [`Status::BAD_PARAM`].
    pub(super) fn allocate(
        &mut self,
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        wanted: Allocation,
    ) -> Result<u32, Status> {
        let quotas = Quotas::of(&hca.attributes().limits);
        match wanted {
            Allocation::Qpns { count, align } => self.reserve_qpns(hca, &quotas, count, align),
            Allocation::Qp { qpn } => self.qps.map(qpn).map(|()| qpn),
            Allocation::Cq => self.cqs.reserve_and_map(quotas.cqs),
            Allocation::Srq => self.srqs.reserve_and_map(quotas.srqs),
            Allocation::Mpt => self.mpts.reserve(quotas.mpts),
            Allocation::MptEntry { index } => self.mpts.owned.map(index).map(|()| index),
            Allocation::Mtts { order } => mtts.alloc(order),
            Allocation::Counter => self.counters.reserve_and_map(quotas.counters),
        }
    }

    fn reserve_qpns(
        &mut self,
        hca: &mut dyn Hca,
        quotas: &Quotas,
        count: u32,
        align: u32,
    ) -> Result<u32, Status> {
        if count == 0 || !align.is_power_of_two() || align > MAX_QPN_ALIGN {
            return Err(Status::BAD_PARAM);
        }
        // Proxies are not the driver's.
        let proxies = self.special.map_or(0, |_| SPECIAL_QPNS / 2);
        if count > (quotas.qps + proxies).saturating_sub(self.qps.len()) {
            return Err(Status::EXCEED_LIM);
        }
        let first = hca.reserve_qpns(count, align).map_err(status_of)?.get();
        self.qps.reserve(first, count);
        Ok(first)
    }

    /// Takes numbers back.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for what the driver does not have, [`Status::RESOURCE_BUSY`] for what is
    /// in use.
    pub(super) fn release(
        &mut self,
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        mpts: &mut Mpts,
        given: Release,
    ) -> Result<(), Status> {
        match given {
            Release::Qpns { first, count } => self.release_qpns(hca, first, count),
            Release::Qp { qpn } => self.qps.unmap(qpn),
            Release::Cq { cqn } => self.cqs.unmap_and_release(cqn),
            Release::Srq { srqn } => self.srqs.unmap_and_release(srqn),
            Release::Mpt { index } => {
                self.mpts.owned.release(index, 1)?;
                mpts.forget(index);
                Ok(())
            }
            Release::MptEntry { index } => self.mpts.owned.unmap(index),
            Release::Mtts { first, order } => mtts.free(first, order),
            Release::Counter { index } => self.counters.unmap_and_release(index),
        }
    }

    fn release_qpns(&mut self, hca: &mut dyn Hca, first: u32, count: u32) -> Result<(), Status> {
        let special = self.special.is_some_and(|special| {
            special.contains(first) || special.first.wrapping_sub(first) < count
        });
        if count == 0 || special {
            return Err(Status::BAD_PARAM);
        }
        self.qps.check_reserved(first, count)?;
        let qpn = Qpn::new(first).ok_or(Status::BAD_PARAM)?;
        hca.release_qpns(qpn, count).map_err(status_of)?;
        self.qps.release(first, count)
    }
}
