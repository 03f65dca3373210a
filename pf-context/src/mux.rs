//! The mux: its parts, its time and its outputs.

use std::collections::VecDeque;

use cm_paravirt::CmParavirt;
use ib_vtime::{Instant, SplitMix64};
use ib_wire::mad::Mad;
use ib_wire::{Lid, Lmc, PortNum, Sl};
use mad_mux::path_cache::PathCache;
use mad_mux::steering::GidTable;
use mad_mux::tid::TidMap;
use mcast_agg::McastAgg;
use mcast_agg::notices::NoticeAgg;
use vf_tunnel::{SubnetLmcs, VfId};

use crate::cm::SharedCm;
use crate::config::{EgressLimit, Policy, PortConfig};
use crate::join_routes::JoinRoutes;
use crate::limiter::Limiter;
use crate::output::{Cause, Output, Passed, Sizes, StateBytes};
use crate::paths::WaitingRequest;
use crate::pkeys::PortPKeys;
use crate::services::Services;
use crate::statistics::MadStatistics;
use crate::vf::Vfs;

/// What the SM told the port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) lid: Lid,
    pub(crate) lmc: Lmc,
    pub(crate) sm_lid: Lid,
    pub(crate) sm_sl: Sl,
    pub(crate) up: bool,
}

impl Port {
    /// Whether a LID is one of the port's. Before the SM gave it any, none is.
    pub(crate) const fn owns(&self, lid: Lid) -> bool {
        let path_bits = self.lmc.mask();
        self.lid.is_unicast() && lid.get() & !path_bits == self.lid.get() & !path_bits
    }
}

/// One port's QP0 and QP1 as its VFs share them: see the [crate's documentation](crate).
#[derive(Clone, Debug)]
pub struct PortMux {
    /// The number under which the adapter's communication manager knows the port.
    pub(crate) number: PortNum,
    pub(crate) port: Port,
    pub(crate) policy: Policy,
    pub(crate) pkeys: PortPKeys,
    pub(crate) gids: GidTable,
    pub(crate) vfs: Vfs,
    pub(crate) tids: TidMap,
    /// Shared with the adapter's other ports.
    pub(crate) cm: SharedCm,
    pub(crate) mcast: McastAgg,
    pub(crate) notices: NoticeAgg,
    pub(crate) join_routes: JoinRoutes,
    pub(crate) services: Services,
    pub(crate) paths: PathCache<WaitingRequest>,
    /// VFs whose alias has left its groups.
    pub(crate) groups_left: VecDeque<VfId>,
    pub(crate) limiter: Limiter,
    /// What a new VF gets.
    pub(crate) egress_limit: EgressLimit,
    /// What became of MADs that are no VF's.
    pub(crate) statistics: MadStatistics,
    /// Counts what the port itself sends to the SA, so that no two transmissions are alike.
    pub(crate) sa_transmissions: u16,
    outputs: VecDeque<(Cause, Output)>,
}

impl PortMux {
    /// An active port without VFs.
    #[must_use]
    pub fn new(config: PortConfig) -> Self {
        let mut seeds = SplitMix64::new(config.seed);
        let PortConfig { limits, .. } = config;
        let mut this = Self {
            number: PortNum(1),
            port: Port {
                lid: config.lid,
                lmc: config.lmc,
                sm_lid: config.sm_lid,
                sm_sl: config.sm_sl,
                up: true,
            },
            policy: config.policy,
            pkeys: PortPKeys::new(config.pkeys),
            gids: GidTable::new(config.subnet_prefix, config.guid),
            vfs: Vfs::default(),
            tids: TidMap::new(limits.tids, seeds.next()),
            cm: SharedCm::new(CmParavirt::new(limits.cm, seeds.next())),
            mcast: McastAgg::new(
                limits.mcast,
                config.subnet_prefix,
                config.guid,
                seeds.next(),
            ),
            notices: NoticeAgg::new(limits.notices),
            join_routes: JoinRoutes::default(),
            services: Services::new(limits.services),
            paths: PathCache::new(limits.paths, seeds.next()),
            groups_left: VecDeque::new(),
            limiter: Limiter::new(limits.wire),
            egress_limit: limits.egress,
            statistics: MadStatistics::default(),
            sa_transmissions: 0,
            outputs: VecDeque::new(),
        };
        this.set_lmc(config.lmc);
        this
    }

    /// Takes the oldest output. Poll until `None` after every call that takes a [`Cause`] or a time.
    pub fn poll_output(&mut self) -> Option<(Cause, Output)> {
        self.outputs.pop_front()
    }

    /// When [`PortMux::handle_timeout`] has something to do. Changes with every other call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        [
            self.tids.poll_timeout(),
            self.cm.lock().machine.poll_timeout(),
            self.mcast.poll_timeout(),
            self.notices.poll_timeout(),
            self.services.poll_timeout(),
            self.paths.poll_timeout(),
            self.limiter.next_ready(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due: ends what is too old, asks the SA again, sends what had to wait.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tids.expire(now);
        self.cm.lock().machine.handle_timeout(now);
        self.mcast.handle_timeout(now);
        self.notices.handle_timeout(now);
        self.paths.expire(now);
        self.pump(now, Cause::TIMER);
        self.release(now);
    }

    /// Takes note of the number of path bits in the port's LIDs.
    pub fn set_lmc(&mut self, lmc: Lmc) {
        self.port.lmc = lmc;
        self.with_lmcs(|lmcs| lmcs.set_own(lmc));
    }

    /// Calls something with what transactions and connections know of the subnet's LMCs.
    pub(crate) fn with_lmcs(&mut self, call: impl Fn(&mut SubnetLmcs)) {
        call(self.tids.lmcs_mut());
        call(self.cm.lock().machine.lmcs_mut(self.number));
    }

    /// Frames of VFs that wait for their turn.
    pub(crate) const fn queued(&self) -> usize {
        self.limiter.queued()
    }

    /// Live objects.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let mcast = self.mcast.sizes();
        Sizes {
            tids: self.tids.len(),
            cm_ids: self.cm_ids(),
            mcast_groups: mcast.groups,
            mcast_members: mcast.members,
            subscriptions: self.notices.sizes().held,
            path_cache: self.paths.len(),
            queued: self.limiter.queued(),
        }
    }

    /// Returns how many services a VF may have at the SA, those being deleted included.
    #[must_use]
    pub fn vf_services(&self, vf: VfId) -> usize {
        self.services.count(vf)
    }

    /// Bytes that the tables take.
    #[must_use]
    pub fn state_bytes(&self) -> StateBytes {
        StateBytes {
            tids: self.tids.bytes(),
            cm_ids: self.cm_bytes(),
            mcast: self.mcast.bytes(),
        }
    }

    pub(crate) fn emit_passed(&mut self, cause: Cause, passed: Passed, mad: &Mad) {
        self.outputs
            .extend(passed.with(*mad).map(|output| (cause, output)));
    }

    pub(crate) fn emit(&mut self, cause: Cause, output: Output) {
        self.outputs.push_back((cause, output));
    }
}
