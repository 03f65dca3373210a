//! VFs that programs hold, on a subnet with a manager: once on the functions of emulated adapters, and twice
//! on virtual functions in software: over their physical ones, and over the least of these.

mod divided;
mod emulated;
mod plain;

/// The packets of a run follow from its seed alone, whichever of the two adapters is below.
#[test]
fn one_seed_makes_the_same_packets_again_and_over_the_least_adapter() {
    let packets = divided::suite::connected::packets();
    assert!(packets.len() > 100, "{}", packets.len());
    assert!(divided::suite::connected::packets() == packets);
    assert!(plain::suite::connected::packets() == packets);
    let emulated = emulated::suite::connected::packets();
    assert!(emulated::suite::connected::packets() == emulated);
}
