//! Rates in order of speed, and the rate of a link.

use ib_wire::Rate;

/// All legal codes, slowest first; codes of equal speed do not exist.
const BY_SPEED: [Rate; 21] = [
    Rate::GBPS_2_5,
    Rate::GBPS_5,
    Rate::GBPS_10,
    Rate::GBPS_14,
    Rate::GBPS_20,
    Rate::GBPS_25,
    Rate::GBPS_28,
    Rate::GBPS_30,
    Rate::GBPS_40,
    Rate::GBPS_50,
    Rate::GBPS_56,
    Rate::GBPS_60,
    Rate::GBPS_80,
    Rate::GBPS_100,
    Rate::GBPS_112,
    Rate::GBPS_120,
    Rate::GBPS_168,
    Rate::GBPS_200,
    Rate::GBPS_300,
    Rate::GBPS_400,
    Rate::GBPS_600,
];

/// The speed in Mb/s, 0 for an illegal code: what rates are compared by.
pub(crate) fn speed(rate: Rate) -> u32 {
    rate.megabits().unwrap_or(0)
}

/// The slower of two rates.
pub(crate) fn slower(a: Rate, b: Rate) -> Rate {
    if speed(b) < speed(a) { b } else { a }
}

/// The next slower legal rate.
pub(crate) fn next_slower(rate: Rate) -> Option<Rate> {
    BY_SPEED
        .into_iter()
        .rev()
        .find(|other| speed(*other) < speed(rate))
}

/// The fastest rate code that is not above the link's speed, from the active fields of PortInfo
/// (IBA 14.2.5.6): LinkWidthActive, LinkSpeedActive and LinkSpeedExtActive (0 if the port has
/// no extended speeds). Unknown fields count as 1x and 2.5 Gb/s.
pub(crate) fn of_link(width: u8, speed_bits: u8, extended_speed_bits: u8) -> Rate {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    let lane = match (extended_speed_bits, speed_bits) {
        (1, _) => 14_000,
        (2, _) => 25_000,
        (4, _) => 50_000,
        (8, _) => 100_000,
        (_, 2) => 5_000,
        (_, 4) => 10_000,
        _ => 2_500,
    };
    let megabits = lanes * lane;
    let fits = |rate: &Rate| speed(*rate) <= megabits;
    BY_SPEED
        .into_iter()
        .rev()
        .find(fits)
        .unwrap_or(Rate::GBPS_2_5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_complete() {
        assert!(
            BY_SPEED
                .windows(2)
                .all(|pair| speed(pair[0]) < speed(pair[1]))
        );
        let legal = (0..=u8::MAX)
            .filter(|code| Rate::new(*code).megabits().is_some())
            .count();
        assert_eq!(legal, BY_SPEED.len());
    }

    #[test]
    fn links_have_the_rate_of_their_width_and_speed() {
        for (width, speed, extended, rate) in [
            (1, 1, 0, Rate::GBPS_2_5),
            (2, 1, 0, Rate::GBPS_10),
            (2, 4, 0, Rate::GBPS_40),
            (8, 4, 0, Rate::GBPS_120),
            (2, 4, 1, Rate::GBPS_56),
            (2, 4, 2, Rate::GBPS_100),
            (16, 4, 1, Rate::GBPS_28),
            (0, 0, 0, Rate::GBPS_2_5),
        ] {
            assert_eq!(
                of_link(width, speed, extended),
                rate,
                "{width} {speed} {extended}"
            );
        }
    }

    #[test]
    fn the_next_slower_rate_goes_by_speed_not_by_code() {
        assert_eq!(next_slower(Rate::GBPS_30), Some(Rate::GBPS_28));
        assert_eq!(next_slower(Rate::GBPS_2_5), None);
        assert_eq!(slower(Rate::GBPS_5, Rate::GBPS_30), Rate::GBPS_5);
    }
}
