use proptest::prelude::*;
use vf_tunnel::wire_id::Permutation;

use super::*;
use crate::config::Config;

fn peer(lid: u16, port: u8) -> PeerAddress {
    PeerAddress {
        port: PortNum(port),
        lid: Lid::new(lid),
        qpn: Qpn::GSI,
        sl: Sl::default(),
        gid: None,
    }
}

fn space(is_sidr: bool) -> Space {
    if is_sidr {
        Space::Sidr
    } else {
        Space::Connection
    }
}

fn table() -> Table {
    let ticks = Ticks::from(&Config::default());
    Table::new(
        Store::new(Permutation::new(7)),
        KeyedHash::new([1, 2]),
        ticks,
        64,
        64,
    )
}

/// Id, kind of exchange, VF and port.
type Asked = (u32, bool, u16, u8);

fn keys((id, is_sidr, number, port): Asked) -> [u64; 2] {
    let (vf, space) = (VfId::new(number).expect("a VF"), space(is_sidr));
    [
        guest_key(vf, VfCommId(id.into()), space),
        peer_key(&peer(number, port), RemoteCommId(id.into()), space),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let near = |most: u32| prop_oneof![0..4_u32, Just(1 << 8), Just(most)];
    (near(u32::MAX), any::<bool>(), near(1024), near(2)).prop_map(|(id, is_sidr, number, port)| {
        let number = u16::try_from(number.max(1)).expect("small");
        (id, is_sidr, number, u8::try_from(port & 3).expect("small"))
    })
}

proptest! {
    #[test]
    fn different_ids_have_different_keys(a in asked(), b in asked()) {
        let [(guest_a, peer_a), (guest_b, peer_b)] = [keys(a), keys(b)].map(|[g, p]| (g, p));
        prop_assert_eq!(peer_a == peer_b, a == b);
        prop_assert_eq!(guest_a == guest_b, (a.0, a.1, a.2) == (b.0, b.1, b.2));
    }
}

#[test]
fn ids_whose_hashes_are_equal_are_told_apart() {
    let (one, other) = (VfId::new(1).expect("a VF"), VfId::new(2).expect("a VF"));
    let (guest, remote) = (VfCommId(5.into()), RemoteCommId(77.into()));
    let (state, here, there) = (State::ReqSent, peer(9, 1), peer(10, 1));
    let mut table = table();
    let connection = Space::Connection;
    let bound = table
        .open_for_guest(one, guest, state, connection, &here)
        .expect("room");
    let asked = table
        .open_for_peer(one, remote, State::ReqRcvd, connection, &here)
        .expect("room");

    let ids_of_vfs = [
        (one, VfCommId(6.into()), connection),
        (other, guest, connection),
        (one, guest, Space::Sidr),
    ];
    for (vf, guest, space) in ids_of_vfs {
        table
            .by_guest
            .insert(table.guest_hash(vf, guest, space), bound);
        assert_eq!(table.by_guest(vf, guest, space, PortNum(1)), None);
    }
    let ids_of_peers = [
        (here, RemoteCommId(78.into()), connection),
        (there, remote, connection),
        (peer(9, 2), remote, connection),
        (here, remote, Space::Sidr),
    ];
    for (peer, id, space) in ids_of_peers {
        table
            .by_peer
            .insert(table.hash.hash(peer_key(&peer, id, space)), asked);
        assert_eq!(table.by_peer(&peer, id, space).count(), 0);
    }
    assert_eq!(
        table.by_guest(one, guest, connection, PortNum(1)),
        Some(bound)
    );
    assert_eq!(table.by_peer(&here, remote, connection).next(), Some(asked));
}
