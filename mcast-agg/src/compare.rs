//! Whether a request fits a group, as the SA decides it.
//!
//! The rules are OpenSM's with `mcgroup_join_validation` on (its default): what the request supplies
//! must agree with the group; the packet life time is never looked at.

use ib_wire::sa::{ComponentMask, McMemberRecord, Selector};
use ib_wire::{Mtu, PKey, Rate};

/// Whether every component that the request supplies agrees with the group's record.
pub(crate) fn fits(mask: ComponentMask, wanted: &McMemberRecord, group: &McMemberRecord) -> bool {
    type R = McMemberRecord;
    let supplied = |component| mask.contains(component);
    (!supplied(R::QKEY) || wanted.qkey == group.qkey)
        && (!supplied(R::MLID) || wanted.mlid == group.mlid)
        && (!supplied(R::TRAFFIC_CLASS) || wanted.traffic_class == group.traffic_class)
        && (!supplied(R::PKEY) || pkeys_agree(wanted.pkey, group.pkey))
        && (!supplied(R::SL) || wanted.sl() == group.sl())
        && (!supplied(R::FLOW_LABEL) || wanted.flow_label() == group.flow_label())
        && (!supplied(R::HOP_LIMIT) || wanted.hop_limit() == group.hop_limit())
        && (!supplied(R::SCOPE) || wanted.scope() == group.scope())
        && (!supplied(R::MTU_SELECTOR | R::MTU) || mtu_fits(wanted, group))
        && (!supplied(R::RATE_SELECTOR | R::RATE) || rate_fits(wanted, group))
}

/// Whether a holder of `keys` may know of, and take part in, a group of the partition: any kind of
/// membership will do, as at the SA.
pub(crate) fn may_join(keys: &[PKey], partition: PKey) -> bool {
    partition.is_valid() && keys.iter().any(|key| key.base() == partition.base())
}

/// The same partition, and not both limited.
fn pkeys_agree(wanted: PKey, group: PKey) -> bool {
    wanted.base() == group.base() && (wanted.is_full() || group.is_full())
}

fn mtu_fits(wanted: &McMemberRecord, group: &McMemberRecord) -> bool {
    let bytes = |mtu: Mtu| mtu.bytes().unwrap_or(0);
    satisfied(
        wanted.mtu_selector(),
        bytes(wanted.mtu_value()),
        bytes(group.mtu_value()),
    )
}

fn rate_fits(wanted: &McMemberRecord, group: &McMemberRecord) -> bool {
    // The codes of rates are not in the order of speed.
    let speed = |rate: Rate| rate.megabits().unwrap_or(0);
    satisfied(
        wanted.rate_selector(),
        speed(wanted.rate_value()),
        speed(group.rate_value()),
    )
}

fn satisfied<T: Ord>(selector: Selector, wanted: T, group: T) -> bool {
    match selector {
        Selector::GREATER => group > wanted,
        Selector::LESS => group < wanted,
        Selector::EXACTLY => group == wanted,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::{Lid, QKey, Sl};

    use super::*;

    type R = McMemberRecord;

    fn group() -> McMemberRecord {
        let mut group = McMemberRecord {
            qkey: QKey::new(0xb1b),
            mlid: Lid::new(0xc001),
            traffic_class: 3,
            pkey: PKey::new(0x8123),
            ..McMemberRecord::default()
        };
        group.set_sl(Sl::from_low_bits(2));
        group.set_flow_label(0x12345);
        group.set_hop_limit(7);
        group.set_scope(2);
        group.set_mtu_value(Mtu::MTU_2048);
        group.set_rate_value(Rate::GBPS_20);
        group
    }

    fn all() -> ComponentMask {
        ComponentMask::new((1 << 18) - 1)
    }

    #[test]
    fn c117_the_groups_own_values_fit() {
        let mut wanted = group();
        wanted.set_mtu_selector(Selector::EXACTLY);
        wanted.set_rate_selector(Selector::EXACTLY);
        assert!(fits(all(), &wanted, &group()));
    }

    #[test]
    fn c118_each_supplied_component_must_agree() {
        type Change = fn(&mut McMemberRecord);
        let change: [(ComponentMask, Change); 7] = [
            (R::QKEY, |r| r.qkey = QKey::new(1)),
            (R::MLID, |r| r.mlid = Lid::new(0xc002)),
            (R::TRAFFIC_CLASS, |r| r.traffic_class = 4),
            (R::SL, |r| r.set_sl(Sl::from_low_bits(3))),
            (R::FLOW_LABEL, |r| r.set_flow_label(1)),
            (R::HOP_LIMIT, |r| r.set_hop_limit(1)),
            (R::SCOPE, |r| r.set_scope(5)),
        ];
        for (component, change) in change {
            let mut wanted = group();
            change(&mut wanted);
            assert!(!fits(component, &wanted, &group()), "{component}");
            assert!(
                fits(ComponentMask::NONE, &wanted, &group()),
                "not supplied: {component}"
            );
        }
    }

    #[test]
    fn c119_the_membership_bit_of_a_pkey_counts_only_when_both_are_limited() {
        let with = |value| McMemberRecord {
            pkey: PKey::new(value),
            ..group()
        };
        assert!(fits(R::PKEY, &with(0x0123), &group()));
        assert!(fits(R::PKEY, &group(), &with(0x0123)));
        assert!(!fits(R::PKEY, &with(0x0123), &with(0x0123)));
        assert!(!fits(R::PKEY, &with(0x8124), &group()));
    }

    #[test]
    fn c120_rates_compare_by_speed_and_not_by_code() {
        // 5 Gb/s has a larger code (5) than 10 Gb/s (3).
        let mut wanted = group();
        let mut group = group();
        group.set_rate_value(Rate::GBPS_10);
        wanted.set_rate_value(Rate::GBPS_5);
        let mask = R::RATE | R::RATE_SELECTOR;
        wanted.set_rate_selector(Selector::GREATER);
        assert!(fits(mask, &wanted, &group));
        wanted.set_rate_selector(Selector::LESS);
        assert!(!fits(mask, &wanted, &group));
        assert!(
            fits(R::RATE, &wanted, &group),
            "without its selector a rate asks nothing"
        );
    }

    #[test]
    fn c120_mtu_selectors_are_strict() {
        let mask = R::MTU | R::MTU_SELECTOR;
        let table = [
            (Selector::GREATER, Mtu::MTU_1024, true),
            (Selector::GREATER, Mtu::MTU_2048, false),
            (Selector::LESS, Mtu::MTU_4096, true),
            (Selector::LESS, Mtu::MTU_2048, false),
            (Selector::EXACTLY, Mtu::MTU_2048, true),
            (Selector::EXACTLY, Mtu::MTU_1024, false),
            (Selector::BEST, Mtu::MTU_256, true),
        ];
        for (selector, mtu, expected) in table {
            let mut wanted = group();
            wanted.set_mtu_selector(selector);
            wanted.set_mtu_value(mtu);
            assert_eq!(fits(mask, &wanted, &group()), expected, "{selector} {mtu}");
        }
    }

    #[test]
    fn c121_any_membership_of_the_partition_lets_a_vf_join() {
        assert!(may_join(&[PKey::new(0x0123)], PKey::new(0x8123)));
        assert!(!may_join(&[PKey::DEFAULT_FULL], PKey::new(0x8123)));
        assert!(
            !may_join(&[PKey::new(0x8000)], PKey::new(0x8000)),
            "partition 0 is invalid"
        );
    }
}
