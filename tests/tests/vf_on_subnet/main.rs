//! VFs that programs hold, on a subnet with a manager: once on the functions of emulated adapters, and twice
//! on virtual functions in software: over their physical ones, and over the least of these.

mod divided;
mod emulated;
mod plain;

/// Nothing of a run follows from anything but its seed, and nothing on the wire from the least that the lower adapter does.
#[test]
fn one_seed_makes_the_same_packets_again_and_over_the_least_adapter() {
    let packets = divided::suite::connected::packets();
    assert!(packets.len() > 100, "{}", packets.len());
    assert!(divided::suite::connected::packets() == packets);
    assert!(plain::suite::connected::packets() == packets);
    let emulated = emulated::suite::connected::packets();
    assert!(emulated::suite::connected::packets() == emulated);
}
