//! Keys of memory regions, as a sibling would compute them.

use std::collections::BTreeSet;

use ib_vtime::SplitMix64;

use super::*;

/// Keys that an attacker collects.
const OWN_KEYS: usize = 10_000;
/// Guesses of the upper half of a number, around the true one. An attacker makes 2^32, in a minute.
const GUESSES: u32 = 1 << 10;
const SEED: u64 = 7;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn unshift(value: u64, shift: u32) -> u64 {
    let mut found = value;
    for _ in 0..64 / shift {
        found = value ^ found >> shift;
    }
    found
}

/// Returns the factor that undoes an odd one (Newton's iteration).
fn inverse(factor: u64) -> u64 {
    (0..6).fold(factor, |found, _| {
        found.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(found)))
    })
}

/// Returns the state of SplitMix64 behind a number.
fn state_of(number: u64) -> u64 {
    let z = unshift(number, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    let z = unshift(z, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    unshift(z, 30)
}

/// The old key of a number: its lower half.
fn key_of(number: u64) -> u32 {
    let [.., a, b, c, d] = number.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The attack of old: three consecutive own keys, the first of them the `nth` of its function, and guesses of the first
/// number's upper half. Returns the seed of the function.
fn attack(keys: &[u32], nth: u64, around: u32) -> Option<u64> {
    let guesses = around.wrapping_sub(GUESSES / 2)..=around.wrapping_add(GUESSES / 2);
    guesses.into_iter().find_map(|upper| {
        let state = state_of(u64::from(upper) << 32 | u64::from(keys[0]));
        let mut numbers = SplitMix64::new(state);
        let others = &keys[1..3];
        let fits = others.iter().all(|key| key_of(numbers.next()) == *key);
        fits.then(|| state.wrapping_sub(STEP.wrapping_mul(nth + 1)))
    })
}

/// Keys of the next function that was made, from the seed of one.
fn keys_of_next_sibling(seed: u64) -> BTreeSet<u32> {
    let mut device = SplitMix64::new(state_of(seed));
    let mut sibling = SplitMix64::new(device.next());
    (0..OWN_KEYS).map(|_| key_of(sibling.next())).collect()
}

/// Numbers of a VF and its sibling behind their keys, as adapters chose them of old: function by function from a seed of
/// its own, all of these from the adapter's.
fn old_numbers() -> [Vec<u64>; 2] {
    let mut device = SplitMix64::new(SEED);
    device.next(); // of the PF
    [(); 2].map(|()| {
        let mut function = SplitMix64::new(device.next());
        (0..OWN_KEYS).map(|_| function.next()).collect()
    })
}

fn register(device: &mut Device, id: FunctionId, count: usize) -> Vec<u32> {
    let mut hca = device.function(id).unwrap();
    let memory = hca.allocate_dma(4096).unwrap();
    let pd = hca.alloc_pd().unwrap();
    let spec = MrSpec {
        pd,
        kind: MrKind::Virtual {
            addr: memory.addr,
            len: 4096,
        },
        access: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
        key: None,
    };
    let keys = (0..count).map(|_| hca.register_mr(&spec).unwrap().rkey.0);
    keys.collect()
}

/// Keys of two VFs of an adapter.
fn keys(seed: u64) -> [Vec<u32>; 2] {
    let mut device = Device::new(&HcaConfig::new(Guid::new(1), "test"), seed);
    add_vf(&mut device, VF1);
    add_vf(&mut device, VF2);
    [VF1, VF2].map(|id| register(&mut device, id, OWN_KEYS))
}

#[test]
fn ten_thousand_own_keys_compute_no_siblings() {
    let old = old_numbers();
    let old_keys = old.clone().map(|numbers| numbers.into_iter().map(key_of));
    let [own, sibling] = old_keys.map(Iterator::collect::<Vec<u32>>);
    // The attack works on the keys of old, from any three of them.
    for nth in [0, 17, OWN_KEYS - 3] {
        let upper = u32::try_from(old[0][nth] >> 32).unwrap();
        let seed =
            attack(&own[nth..], nth as u64, upper).expect("the upper half is among the guesses");
        assert_eq!(
            keys_of_next_sibling(seed),
            sibling.iter().copied().collect()
        );
    }
    // It finds nothing from those of today, wherever it looks.
    let [own, sibling] = keys(SEED);
    for nth in 0..OWN_KEYS - 2 {
        let upper = u32::try_from(old[0][nth] >> 32).unwrap();
        assert_eq!(attack(&own[nth..], nth as u64, upper), None);
    }
    // Nor do the keys of one VF repeat those of the other.
    let own: BTreeSet<u32> = own.into_iter().collect();
    let both = sibling.iter().filter(|key| own.contains(key)).count();
    assert!(both < 4, "{both} keys of 10^4 are also a sibling's");
}

#[test]
fn keys_follow_from_the_seed_and_differ_with_another() {
    let [own, sibling] = keys(1);
    assert_eq!([&own, &sibling], keys(1).each_ref());
    let other: BTreeSet<u32> = keys(2).concat().into_iter().collect();
    let both = own.iter().filter(|key| other.contains(key)).count();
    assert!(both < 4, "{both} keys of 10^4 are also another adapter's");
}

/// A driver draws the numbers that it chooses from a secret that reveals nothing, and is never drawn twice.
#[test]
fn a_drawn_secret_is_no_other_functions() {
    let mut device = device(1);
    add_vf(&mut device, VF1);
    add_vf(&mut device, VF2);
    let drawn = [VF1, VF1, VF2, PF].map(|id| {
        let secret = device.function(id).unwrap().draw_secret().unwrap();
        secret.numbers().next_u64()
    });
    assert_eq!(BTreeSet::from(drawn).len(), drawn.len());
}
