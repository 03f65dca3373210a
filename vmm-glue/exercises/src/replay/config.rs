//! The first line of a script: the port and its VFs.

use core::num::NonZeroU16;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use ib_wire::{Guid, Lid, Lmc, PKey, PKeyIndex, Sl};
use mad_mux::policy::Rights;
use pf_context::{Limits, PortConfig, PortMux, VfConfig, VfPKeyEntry};
use serde::Deserialize;
use vf_tunnel::{PhysicalPKeyIndex, VfId};

use super::script::{LineError, known_vf, pkey_table, prefix};
use super::text::{ByNumber, Hex, Object, lmc, sl};

/// The port and its VFs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub(super) port: PortConfig,
    /// The VFs, in the order of their numbers from 1 on.
    pub(super) vfs: Vec<VfConfig>,
}

impl Config {
    /// The mux as the script finds it, and the number of its last VF.
    pub(super) fn start(self) -> Result<(PortMux, u16), LineError> {
        let mut mux = PortMux::new(self.port);
        let mut last = 0;
        for (vf, config) in (1..=VfId::MAX).filter_map(VfId::new).zip(self.vfs) {
            mux.add_vf(vf, config)?;
            last = vf.get();
        }
        Ok((mux, last))
    }
}

impl Default for Config {
    fn default() -> Self {
        // The defaults are a legal configuration; a test holds them to it.
        ConfigFields::default()
            .check()
            .unwrap_or_else(|error| unreachable!("{error}"))
    }
}

/// Reads the configuration line.
pub(super) fn parse(line: &[u8]) -> Result<Config, LineError> {
    let ConfigLine {
        config: Object(fields),
    } = serde_json::from_slice(line)?;
    fields.check()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigLine {
    config: Object<ConfigFields>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ConfigFields {
    seed: u64,
    vfs: u64,
    port: Object<PortFields>,
    vf_guids: ByNumber<Hex<u64>>,
    vf_pkeys: ByNumber<Vec<Option<PKeyField>>>,
    smi_enabled: BTreeSet<u64>,
    limits: Object<LimitFields>,
}

impl Default for ConfigFields {
    fn default() -> Self {
        Self {
            seed: 1,
            vfs: 2,
            port: Object::default(),
            vf_guids: ByNumber(BTreeMap::new()),
            vf_pkeys: ByNumber(BTreeMap::new()),
            smi_enabled: BTreeSet::new(),
            limits: Object::default(),
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PortFields {
    lid: u16,
    #[serde(deserialize_with = "lmc")]
    lmc: Lmc,
    sm_lid: u16,
    #[serde(deserialize_with = "sl")]
    sm_sl: Sl,
    subnet_prefix: Ipv6Addr,
    guid: Hex<u64>,
    pkeys: Vec<Hex<u16>>,
}

impl Default for PortFields {
    fn default() -> Self {
        Self {
            lid: 5,
            lmc: Lmc::default(),
            sm_lid: 1,
            sm_sl: Sl::default(),
            subnet_prefix: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0),
            guid: Hex(0x0002_c903_0000_0001),
            pkeys: vec![Hex(PKey::DEFAULT_FULL.get())],
        }
    }
}

/// An entry of a VF's P_Key table: a physical index, or a key by its value.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a P_Key index or a key like `\"0x8001\"`"
)]
enum PKeyField {
    Index(u16),
    Value(Hex<u16>),
}

impl From<PKeyField> for VfPKeyEntry {
    fn from(field: PKeyField) -> Self {
        match field {
            PKeyField::Index(index) => Self::Index(PhysicalPKeyIndex(PKeyIndex(index))),
            PKeyField::Value(Hex(key)) => Self::Value(PKey::new(key)),
        }
    }
}

/// Defines the fields of one kind of limits; those that the script leaves out stay as they are.
macro_rules! limits {
    ($name:ident for $limits:ty { $($field:ident: $int:ty,)* }) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        struct $name {
            $($field: Option<$int>,)*
        }

        impl $name {
            fn apply(self, limits: &mut $limits) {
                $(if let Some(limit) = self.$field {
                    limits.$field = limit;
                })*
            }
        }
    };
}

limits! {
    TidLimits for mad_mux::tid::TidConfig { per_vf: u32, sa_per_vf: u32, }
}
limits! {
    CmLimits for cm_paravirt::Config {
        ids_per_vf: u32, pending_per_vf: u32, answers_per_second: u32, answer_burst: u32,
    }
}
limits! {
    McastLimits for mcast_agg::Config {
        groups_per_member: u16, waiting_per_member: u16, max_in_flight: usize,
    }
}
limits! {
    PathLimits for mad_mux::path_cache::PathCacheConfig {
        lifetime_ms: u32, entries: u32, per_vf: u32,
    }
}
limits! {
    NoticeLimits for mcast_agg::notices::Config {
        subscriptions_per_member: u16, waiting_per_member: u16, max_in_flight: usize,
    }
}
limits! {
    EgressLimits for pf_context::EgressLimit {
        mads_per_second: u32, burst: u32, queue: usize, weight: NonZeroU16,
    }
}
limits! {
    WireLimits for pf_context::WireLimit { mads_per_second: u32, burst: u32, }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitFields {
    tids: Object<TidLimits>,
    cm: Object<CmLimits>,
    mcast: Object<McastLimits>,
    notices: Object<NoticeLimits>,
    paths: Object<PathLimits>,
    egress: Object<EgressLimits>,
    wire: Object<WireLimits>,
}

impl From<LimitFields> for Limits {
    fn from(fields: LimitFields) -> Self {
        let mut limits = Self::default();
        fields.tids.0.apply(&mut limits.tids);
        fields.cm.0.apply(&mut limits.cm);
        fields.mcast.0.apply(&mut limits.mcast);
        fields.notices.0.apply(&mut limits.notices);
        fields.paths.0.apply(&mut limits.paths);
        fields.egress.0.apply(&mut limits.egress);
        fields.wire.0.apply(&mut limits.wire);
        limits
    }
}

/// What the GUIDs of neighbouring VFs differ by where the script gives none, so that they do not meet
/// the GUIDs of the adapter's own ports.
const GUID_STEP: u64 = 0x1_0000;

impl ConfigFields {
    fn check(self) -> Result<Config, LineError> {
        let vfs = u16::try_from(self.vfs)
            .ok()
            .filter(|&vfs| vfs <= VfId::MAX)
            .ok_or(LineError::TooManyVfs(self.vfs))?;
        let named = self.vf_guids.0.keys().chain(self.vf_pkeys.0.keys());
        for &vf in named.chain(&self.smi_enabled) {
            known_vf(vf, vfs)?;
        }
        let vfs = (1..=u64::from(vfs)).map(|vf| self.vf(vf)).collect();
        let Object(port) = self.port;
        let guid = Guid::new(port.guid.0);
        if guid == Guid::default() {
            return Err(LineError::NoPortGuid);
        }
        let port = PortConfig {
            seed: self.seed,
            lid: Lid::new(port.lid),
            lmc: port.lmc,
            sm_lid: Lid::new(port.sm_lid),
            sm_sl: port.sm_sl,
            subnet_prefix: prefix(port.subnet_prefix)?,
            guid,
            pkeys: pkey_table(&port.pkeys),
            limits: self.limits.0.into(),
            ..PortConfig::default()
        };
        Ok(Config { port, vfs })
    }

    fn vf(&self, number: u64) -> VfConfig {
        let guid = match self.vf_guids.0.get(&number) {
            Some(&Hex(guid)) => guid,
            None => self.port.0.guid.0.wrapping_add(number * GUID_STEP),
        };
        let pkeys = match self.vf_pkeys.0.get(&number) {
            Some(indices) => indices.as_slice(),
            None => &[Some(PKeyField::Index(0))],
        };
        VfConfig {
            guid: Some(Guid::new(guid)),
            pkeys: pkeys.iter().map(|entry| entry.map(Into::into)).collect(),
            rights: Rights {
                smi: self.smi_enabled.contains(&number),
                ..Rights::default()
            },
            ..VfConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::SubnetPrefix;

    use super::*;

    fn config(json: &str) -> Config {
        parse(json.as_bytes()).unwrap()
    }

    /// Why a run cannot begin with this line.
    fn reason(json: &str) -> String {
        let started = parse(json.as_bytes()).and_then(Config::start);
        started.map(drop).unwrap_err().to_string()
    }

    fn physical(index: u16) -> Option<VfPKeyEntry> {
        Some(VfPKeyEntry::Index(PhysicalPKeyIndex(PKeyIndex(index))))
    }

    #[test]
    fn an_empty_configuration_is_the_default() {
        let defaults = config(r#"{"config":{}}"#);
        assert_eq!(defaults, Config::default());
        assert_eq!(defaults.port, PortConfig::default());
        let guids = [0x0002_c903_0001_0001, 0x0002_c903_0002_0001];
        assert_eq!(
            defaults.vfs,
            guids.map(|guid| VfConfig {
                guid: Some(Guid::new(guid)),
                pkeys: vec![physical(0)],
                rights: Rights::default(),
                ..VfConfig::default()
            })
        );
    }

    #[test]
    fn every_field_is_read() {
        let config = config(
            r#"{"config":{"seed":7,"vfs":3,"port":{"lid":9,"lmc":2,"sm_lid":3,"sm_sl":4,
            "subnet_prefix":"fec0:0:0:1::","guid":"0x10","pkeys":["0x7fff","0x8001"]},
            "vf_guids":{"2":"0x22"},"vf_pkeys":{"1":[1,null,0],"3":[]},"smi_enabled":[3],"limits":{}}}"#,
        );
        assert_eq!(config.port.seed, 7);
        assert_eq!(config.port.lid, Lid::new(9));
        assert_eq!(config.port.lmc, Lmc::from_low_bits(2));
        assert_eq!(
            (config.port.sm_lid, config.port.sm_sl.get()),
            (Lid::new(3), 4)
        );
        assert_eq!(
            config.port.subnet_prefix,
            SubnetPrefix::new(0xfec0_0000_0000_0001)
        );
        assert_eq!(config.port.guid, Guid::new(0x10));
        assert_eq!(config.port.pkeys, [PKey::new(0x7fff), PKey::new(0x8001)]);
        let [first, second, third] = &config.vfs[..] else {
            panic!("three VFs");
        };
        assert_eq!(first.pkeys, [physical(1), None, physical(0)]);
        assert_eq!(second.guid, Some(Guid::new(0x22)));
        assert_eq!(third.pkeys, []);
        assert_eq!(
            [first, second, third].map(|vf| vf.rights.smi),
            [false, false, true]
        );
    }

    #[test]
    fn a_pkey_of_a_vf_is_an_index_or_a_value() {
        let config = config(r#"{"config":{"vf_pkeys":{"1":[1,"0x8001",null]}}}"#);
        let by_value = Some(VfPKeyEntry::Value(PKey::new(0x8001)));
        assert_eq!(config.vfs[0].pkeys, [physical(1), by_value, None]);
        for json in [
            r#"{"config":{"vf_pkeys":{"1":["8001"]}}}"#,
            r#"{"config":{"vf_pkeys":{"1":["0x18001"]}}}"#,
            r#"{"config":{"vf_pkeys":{"1":[65536]}}}"#,
        ] {
            let reason = reason(json);
            let expected = "expected a P_Key index or a key like `\"0x8001\"`";
            assert!(reason.contains(expected), "{json}: {reason}");
        }
    }

    #[test]
    fn a_script_can_have_from_none_to_1024_vfs() {
        assert_eq!(config(r#"{"config":{"vfs":0}}"#).vfs, []);
        assert_eq!(config(r#"{"config":{"vfs":1024}}"#).vfs.len(), 1024);
        let reason = reason(r#"{"config":{"vfs":1025}}"#);
        assert_eq!(reason, "1025 VFs are too many; there can be 1024");
    }

    #[test]
    fn fields_of_unknown_vfs_are_refused() {
        for json in [
            r#"{"config":{"vf_guids":{"3":"0x1"}}}"#,
            r#"{"config":{"vf_pkeys":{"3":[0]}}}"#,
            r#"{"config":{"smi_enabled":[3]}}"#,
        ] {
            assert_eq!(reason(json), "there is no VF 3; the script has VFs 1 to 2");
        }
    }

    #[test]
    fn limits_that_are_not_given_keep_their_defaults() {
        let config = config(
            r#"{"config":{"limits":{"tids":{"per_vf":3},"cm":{"answer_burst":4},
            "mcast":{"groups_per_member":5},"notices":{"waiting_per_member":7},"egress":{"burst":6,"weight":7},
            "paths":{"lifetime_ms":9},"wire":{"mads_per_second":8}}}}"#,
        );
        let mut expected = Limits::default();
        expected.tids.per_vf = 3;
        expected.cm.answer_burst = 4;
        expected.mcast.groups_per_member = 5;
        expected.notices.waiting_per_member = 7;
        expected.egress.burst = 6;
        expected.egress.weight = NonZeroU16::new(7).unwrap();
        expected.wire.mads_per_second = 8;
        expected.paths.lifetime_ms = 9;
        assert_eq!(config.port.limits, expected);
    }

    #[test]
    fn a_guid_stands_for_one_function() {
        for json in [
            r#"{"config":{"vf_guids":{"1":"0x5","2":"0x5"}}}"#,
            r#"{"config":{"port":{"guid":"0x5"},"vf_guids":{"1":"0x5"}}}"#,
            r#"{"config":{"vf_guids":{"1":"0x0"}}}"#,
        ] {
            let reason = reason(json);
            assert!(reason.ends_with("is taken or reserved"), "{json}: {reason}");
        }
    }

    #[test]
    fn the_port_has_a_guid() {
        let reason = reason(r#"{"config":{"port":{"guid":"0x0"}}}"#);
        assert_eq!(reason, "a port's GUID is not 0");
    }

    #[test]
    fn what_a_vf_has_is_said_once() {
        for json in [
            r#"{"config":{"vf_guids":{"1":"0x5","1":"0x6"}}}"#,
            r#"{"config":{"vf_pkeys":{"1":[0],"1":[]}}}"#,
        ] {
            let reason = reason(json);
            assert!(reason.contains("duplicate number `1`"), "{json}: {reason}");
        }
    }

    #[test]
    fn values_beyond_their_fields_are_refused() {
        for (json, expected) in [
            (r#"{"config":{"port":{"lmc":8}}}"#, "8 is no LID mask count"),
            (
                r#"{"config":{"port":{"sm_sl":16}}}"#,
                "16 is no service level",
            ),
            (
                r#"{"config":{"port":{"subnet_prefix":"fe80::1"}}}"#,
                "`fe80::1` is no subnet prefix",
            ),
            (
                r#"{"config":{"port":{"lid":65536}}}"#,
                "invalid value: integer `65536`",
            ),
            (r#"{"config":{"port":{"sid":1}}}"#, "unknown field `sid`"),
            (r#"{"config":{"sede":1}}"#, "unknown field `sede`"),
            (r#"{"config":{},"at":1}"#, "unknown field `at`"),
            (r#"{"config":[]}"#, "expected an object"),
        ] {
            let reason = reason(json);
            assert!(reason.contains(expected), "{json}: {reason}");
        }
    }
}
